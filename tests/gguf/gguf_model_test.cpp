// Models and tokenizers: what is refused, and the round trip.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "brigade/base/error.h"
#include "brigade/gguf/import_model.h"
#include "brigade/gguf/model_entries.h"
#include "brigade/gguf/model_tensors.h"
#include "brigade/gguf/pre_tokenizer_name.h"
#include "brigade/gguf/tokenizer_files.h"
#include "brigade/gguf/write_model.h"
#include "brigade/gguf/writer.h"
#include "brigade/safetensors/safetensors.h"
#include "brigade/tokenizer/tokenizer.h"
#include "tests/support/message_of.h"
#include "tests/support/parsed_config.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

DecoderConfig config_of(const char* architecture, json more = json::object()) {
  json config = {
      {"architectures", {architecture}},
      {"vocab_size", 258},
      {"hidden_size", 32},
      {"intermediate_size", 64},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 8},
      {"query_pre_attn_scalar", 8},
      {"max_position_embeddings", 128}};
  const bool is_gemma = std::string(architecture).starts_with("Gemma");
  if (!is_gemma)
    config.erase("query_pre_attn_scalar");
  config.update(more);
  return parsed_config(config);
}

// Different values for every parameter and element.
std::vector<float> values_of(const ParameterRow& row) {
  std::vector<float> values(static_cast<size_t>(row.numel()));
  const auto first = static_cast<int64_t>(row.name.size()) + 7 * row.expert;
  std::iota(values.begin(), values.end(), static_cast<float>(first));
  for (float& value : values)
    value /= 64.F;
  return values;
}

GgufModel model_of(const DecoderConfig& config, GgufType type) {
  GgufModel model{.config = config, .name = "some", .type = type};
  model.tokenizer = tokenizer_entries(
      "bytes", {.vocab_size = config.vocab_size, .bos = {}, .eos = {}});
  model.read = [rows = list_parameters(config)](const std::string& name) {
    for (const ParameterRow& row : rows) {
      if (row.name == name)
        return values_of(row);
    }
    return std::vector<float>();
  };
  return model;
}

const std::map<std::string, json>& configs() {
  static const std::map<std::string, json> kConfigs = {
      {"LlamaForCausalLM",
       {{"attention_bias", true},
        {"mlp_bias", true},
        {"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 8.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 16}}}}},
      {"Qwen2ForCausalLM",
       {{"rope_scaling",
         {{"rope_type", "yarn"},
          {"factor", 4.0},
          {"attention_factor", 1.5},
          {"original_max_position_embeddings", 32}}}}},
      {"Qwen3ForCausalLM",
       {{"tie_word_embeddings", true},
        {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}},
      {"MixtralForCausalLM",
       {{"num_local_experts", 4}, {"num_experts_per_tok", 2}}},
      {"Qwen2MoeForCausalLM",
       {{"num_experts", 4},
        {"num_experts_per_tok", 2},
        {"moe_intermediate_size", 24},
        {"shared_expert_intermediate_size", 40}}},
      {"Qwen3MoeForCausalLM",
       {{"num_experts", 4},
        {"num_experts_per_tok", 2},
        {"moe_intermediate_size", 24},
        {"norm_topk_prob", true}}},
      {"OlmoeForCausalLM",
       {{"num_experts", 4},
        {"num_experts_per_tok", 2},
        {"num_key_value_heads", 4}}},
      {"Dots1ForCausalLM",
       {{"num_key_value_heads", 4},
        {"n_routed_experts", 4},
        {"num_experts_per_tok", 2},
        {"moe_intermediate_size", 24},
        {"n_shared_experts", 2},
        {"first_k_dense_replace", 1},
        {"n_group", 2},
        {"topk_group", 1},
        {"norm_topk_prob", true},
        {"routed_scaling_factor", 2.5}}},
      {"Glm4MoeForCausalLM",
       {{"n_routed_experts", 4},
        {"num_experts_per_tok", 2},
        {"moe_intermediate_size", 24},
        {"n_shared_experts", 1},
        {"first_k_dense_replace", 1},
        {"norm_topk_prob", false},
        {"attention_bias", true},
        {"use_qk_norm", true},
        {"partial_rotary_factor", 0.5}}},
      {"Gemma2ForCausalLM", {{"sliding_window", 16}}},
      {"Gemma3ForCausalLM",
       {{"sliding_window", 16}, {"sliding_window_pattern", 2}}}};
  return kConfigs;
}

TEST(GgufModel, ComesBackAsItWas) {
  for (const auto& [architecture, more] : configs()) {
    SCOPED_TRACE(architecture);
    const TemporaryFolder folder;
    const DecoderConfig config = config_of(architecture.c_str(), more);
    write_gguf_model(folder / "a.gguf", model_of(config, GgufType::kF32));
    DecoderConfig read = read_gguf_config(GgufFile(folder / "a.gguf"));
    read.eos_token_ids = config.eos_token_ids;
    read.bos_token_id = config.bos_token_id;
    if (read.rope_scaling)
      read.rope_scaling->original_max_position_embeddings =
          config.rope_scaling->original_max_position_embeddings;
    if (read.rope_scaling && read.rope_scaling->attention_factor) {
      EXPECT_NEAR(*read.rope_scaling->attention_factor, 1.5, 1e-6);
    }
    if (config.rope_scaling)
      read.rope_scaling->attention_factor =
          config.rope_scaling->attention_factor;
    EXPECT_EQ(to_hugging_face_json(read, ""), to_hugging_face_json(config, ""));
    import_gguf(folder / "a.gguf", folder / "out");
    const SafetensorsFile weights(folder / "out" / "model.safetensors");
    for (const ParameterRow& row : list_parameters(config)) {
      const SafetensorsTensor& tensor = weights.at(row.name);
      std::vector<float> values(tensor.data.size() / sizeof(float));
      std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
      EXPECT_EQ(values, values_of(row)) << row.name;
    }
  }
}

TEST(GgufModel, LlamasHeadsAreInterleaved) {
  const DecoderConfig config = config_of("LlamaForCausalLM");
  ParameterRow row;
  for (const ParameterRow& each : list_parameters(config)) {
    if (each.name == "model.layers.1.self_attn.k_proj.weight")
      row = each;
  }
  const TensorForm form = tensor_form(row, config);
  EXPECT_EQ(form.name, "blk.1.attn_k.weight");
  // Two heads of four, one column: row 2i + j is row i + 2j.
  std::vector<float> values = {0, 1, 2, 3, 10, 11, 12, 13};
  to_gguf({.name = "", .rotated_heads = 2}, {8, 1}, values);
  EXPECT_THAT(values, ElementsAre(0, 2, 1, 3, 10, 12, 11, 13));
  from_gguf({.name = "", .rotated_heads = 2}, {8, 1}, values);
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 10, 11, 12, 13));
  EXPECT_EQ(form.rotated_heads, 2);
  EXPECT_EQ(tensor_form(row, config_of("Qwen3ForCausalLM")).rotated_heads, 0);
}

TEST(GgufModel, Llama3sScalingIsAListOfDivisors) {
  const DecoderConfig config =
      config_of("LlamaForCausalLM", configs().at("LlamaForCausalLM"));
  // theta 10000, D 8: wavelengths 2pi * 1, 10, 100, 1000; 16 / 4 and 16 / 1.
  EXPECT_THAT(
      rope_divisors(config),
      ElementsAre(
          ::testing::FloatNear(1.F / (0.4845154F / 8 + 0.5154846F), 1e-3F),
          8,
          8,
          8));
}

// Of an original length and two factors the divisors tell two quotients, which
// are all that the model depends on.
TEST(GgufModel, Llama3sScalingComesBackWhateverItsParameters) {
  struct Case {
    const char* what;
    int64_t head_dim;
    int64_t original;
    double low;
    double high;
    double factor = 8;
  };
  for (const Case& each : std::vector<Case>{
           {"published", 64, 8192, 1, 4},
           {"another original", 64, 48, 1, 4},
           {"one divisor in between", 8, 32, 1, 4},
           {"none in between", 8, 100, 1, 1.25},
           {"other factors", 64, 100, 1.5, 7, 3.3},
           {"two divisors in between", 16, 100, 0.5, 12},
           {"close factors", 128, 700, 2, 2.5, 32}}) {
    SCOPED_TRACE(each.what);
    const TemporaryFolder folder;
    const DecoderConfig config = config_of(
        "LlamaForCausalLM",
        {{"head_dim", each.head_dim},
         {"max_position_embeddings", 777},
         {"rope_scaling",
          {{"rope_type", "llama3"},
           {"factor", each.factor},
           {"low_freq_factor", each.low},
           {"high_freq_factor", each.high},
           {"original_max_position_embeddings", each.original}}}});
    write_gguf_model(folder / "a.gguf", model_of(config, GgufType::kF32));
    const auto read = read_gguf_config(GgufFile(folder / "a.gguf"));
    EXPECT_EQ(read.rope_scaling->factor, each.factor);
    EXPECT_THAT(
        rope_divisors(read),
        ::testing::Pointwise(
            ::testing::FloatNear(each.factor * 1e-5), rope_divisors(config)));
  }
}

std::string refusal(const DecoderConfig& config, GgufType type) {
  return message_of<ConfigError>([&] { require_gguf(config, type); });
}

// As llama.cpp reads it where the type is not said.
TEST(GgufModel, LinearScalingIsReadByItsFactorAlone) {
  const TemporaryFolder folder;
  const auto factor_with = [&](const std::vector<GgufEntry>& more) {
    GgufModel model = model_of(config_of("LlamaForCausalLM"), GgufType::kF32);
    for (const GgufEntry& entry : more)
      model.tokenizer.entries.push_back(
          {"llama.rope." + entry.key, entry.value});
    write_gguf_model(folder / "a.gguf", model);
    const auto read = read_gguf_config(GgufFile(folder / "a.gguf"));
    return read.rope_scaling ? read.rope_scaling->factor : 1;
  };
  const GgufEntry old{"scale_linear", 2.F};
  EXPECT_EQ(factor_with({{"scaling.factor", 4.F}}), 4);
  EXPECT_EQ(factor_with({{"scaling.factor", 4.F}, old}), 4);
  EXPECT_EQ(factor_with({old}), 2);
  EXPECT_EQ(factor_with({{"scaling.factor", 0.F}, old}), 1);
  EXPECT_EQ(
      factor_with(
          {{"scaling.factor", 4.F}, {"scaling.type", std::string("none")}}),
      1);
  EXPECT_EQ(factor_with({{"scaling.type", std::string("linear")}}), 1);
}

TEST(GgufModel, RefusesByNameModelsThatLlamaCppDoesNotCompute) {
  const auto refused = [](const char* architecture, json more) {
    return refusal(config_of(architecture, std::move(more)), GgufType::kF32);
  };
  EXPECT_THAT(
      refused("MistralForCausalLM", {{"sliding_window", 64}}),
      HasSubstr("sliding_window 64: llama.cpp's llama sees all 128"));
  EXPECT_EQ(refused("MistralForCausalLM", {{"sliding_window", 128}}), "");
  EXPECT_THAT(
      refused("Qwen2ForCausalLM", {{"head_dim", 16}}),
      HasSubstr("head_dim 16: llama.cpp's qwen2 needs hidden_size 32 / 4"));
  EXPECT_THAT(
      refused("Qwen3ForCausalLM", {{"attention_bias", true}}),
      HasSubstr("attention_bias: llama.cpp's qwen3 has none"));
  EXPECT_THAT(
      refused(
          "LlamaForCausalLM",
          {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}),
      HasSubstr("rope_type \"dynamic\""));
  EXPECT_THAT(
      refused(
          "Gemma3ForCausalLM",
          {{"layer_types", {"full_attention", "full_attention"}}}),
      HasSubstr("layer_types: llama.cpp's Gemma has sliding layers"));
  EXPECT_THAT(
      refused("Gemma2ForCausalLM", {{"query_pre_attn_scalar", 144}}),
      HasSubstr("query_pre_attn_scalar 144: llama.cpp takes 8"));
  EXPECT_THAT(
      refused("Gemma2ForCausalLM", {{"attn_logit_softcapping", nullptr}}),
      HasSubstr("attn_logit_softcapping null"));
  EXPECT_THAT(
      refused(
          "Gemma3ForCausalLM",
          {{"num_hidden_layers", 3},
           {"layer_types",
            {"full_attention", "sliding_attention", "sliding_attention"}}}),
      HasSubstr("layer_types"));
  json experts = configs().at("Qwen3MoeForCausalLM");
  experts["norm_topk_prob"] = false;
  EXPECT_THAT(
      refused("Qwen3MoeForCausalLM", experts),
      HasSubstr("norm_topk_prob false: llama.cpp's qwen3moe has it true"));
  experts["norm_topk_prob"] = true;
  experts["mlp_only_layers"] = {1};
  EXPECT_THAT(
      refused("Qwen3MoeForCausalLM", experts),
      HasSubstr("layer 1 without experts: llama.cpp's qwen3moe has them in "));
  json olmoe = configs().at("OlmoeForCausalLM");
  olmoe["tie_word_embeddings"] = true;
  olmoe["num_key_value_heads"] = 2;
  EXPECT_THAT(
      refused("OlmoeForCausalLM", olmoe),
      AllOf(
          HasSubstr("tie_word_embeddings true: llama.cpp's olmoe needs a head"),
          HasSubstr(
              "num_key_value_heads 2: llama.cpp's olmoe has a norm of 4")));
  json dots = configs().at("Dots1ForCausalLM");
  dots.update(
      {{"n_shared_experts", nullptr},
       {"attention_bias", true},
       {"num_key_value_heads", 2},
       {"tie_word_embeddings", true}});
  EXPECT_THAT(
      refused("Dots1ForCausalLM", dots),
      AllOf(
          HasSubstr("n_shared_experts 0: llama.cpp's dots1 has some"),
          HasSubstr("attention_bias: llama.cpp's dots1 has none"),
          HasSubstr("num_key_value_heads 2: llama.cpp's dots1 has as many"),
          HasSubstr("tie_word_embeddings true: llama.cpp's dots1 needs a")));
  EXPECT_THAT(
      refusal(
          config_of("LlamaForCausalLM", {{"intermediate_size", 48}}),
          GgufType::kQ8_0),
      HasSubstr("rows of 48 values, which q8_0 cannot hold"));
}

// A byte-level tokenizer with "ab", and one added token.
json byte_level_tokenizer(const json& pre_tokenizer) {
  json vocabulary = json::object();
  std::string alphabet;
  for (int byte = 33; byte < 127; ++byte)
    vocabulary[std::string(1, static_cast<char>(byte))] = vocabulary.size();
  vocabulary["ab"] = vocabulary.size();
  return {
      {"version", "1.0"},
      {"added_tokens",
       {{{"id", 95},
         {"content", "<|end|>"},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", pre_tokenizer},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"a b"}}}}};
}

class GgufTokenizer : public ::testing::Test {
 protected:
  TemporaryFolder folder_;

  TokenizerEntries entries(const json& tokenizer, int64_t vocab_size = 100) {
    write_bytes(folder_ / "tokenizer.json", tokenizer.dump());
    return tokenizer_entries(
        folder_.path().string(),
        {.vocab_size = vocab_size, .bos = {}, .eos = {}});
  }
  std::string refusal(const json& tokenizer, int64_t vocab_size = 100) {
    return message_of<ConfigError>([&] { entries(tokenizer, vocab_size); });
  }
  static const GgufValue& value(
      const TokenizerEntries& entries,
      const std::string& key) {
    for (const GgufEntry& entry : entries.entries) {
      if (entry.key == "tokenizer.ggml." + key)
        return entry.value;
    }
    throw std::out_of_range(key);
  }
};

TEST_F(GgufTokenizer, ByteLevelKeepsItsMergesAndFillsTheVocabulary) {
  const TokenizerEntries written =
      entries(byte_level_tokenizer(pre_tokenizer_named("llama-bpe")));
  // llama.cpp's name for whole words that come from merges only.
  EXPECT_EQ(std::get<std::string>(value(written, "pre")), "smaug-bpe");
  EXPECT_THAT(
      std::get<std::vector<std::string>>(value(written, "merges")),
      ElementsAre("a b"));
  const auto& tokens =
      std::get<std::vector<std::string>>(value(written, "tokens"));
  ASSERT_EQ(tokens.size(), 100);
  EXPECT_EQ(tokens[95], "<|end|>");
  EXPECT_EQ(tokens[99], "[PAD99]");
  const auto& types =
      std::get<std::vector<int32_t>>(value(written, "token_type"));
  EXPECT_EQ(types[0], 1);
  EXPECT_EQ(types[95], 3);
  EXPECT_EQ(types[99], 5);
}

TEST_F(GgufTokenizer, EveryFamilyHasItsNameAndComesBack) {
  for (const char* name :
       {"gpt-2", "smollm", "smaug-bpe", "qwen2", "qwen35", "gpt-4o"}) {
    SCOPED_TRACE(name);
    const TokenizerEntries written =
        entries(byte_level_tokenizer(pre_tokenizer_named(name)));
    EXPECT_EQ(std::get<std::string>(value(written, "pre")), name);
  }
}

TEST_F(GgufTokenizer, RefusesByNameTokenizersThatLlamaCppLacks) {
  EXPECT_THAT(
      refusal(byte_level_tokenizer(
          {{"type", "ByteLevel"},
           {"add_prefix_space", true},
           {"trim_offsets", true},
           {"use_regex", true}})),
      HasSubstr("knows no pre-tokenizer that cuts as"));
  const json plain = byte_level_tokenizer(pre_tokenizer_named("gpt-2"));
  json lower = plain;
  lower["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(
      refusal(lower), HasSubstr("the normalizer {\"type\":\"Lowercase\"}"));
  json stripping = plain;
  stripping["added_tokens"][0]["lstrip"] = true;
  EXPECT_THAT(
      refusal(stripping), HasSubstr("the added token \"<|end|>\" has lstrip"));
  EXPECT_THAT(
      refusal(plain, 90), HasSubstr("beyond the model's vocabulary of 90"));
  json unreachable = byte_level_tokenizer(pre_tokenizer_named("gpt-2"));
  unreachable["model"]["vocab"]["cde"] = 95;
  unreachable["added_tokens"][0]["id"] = 96;
  unreachable["model"]["ignore_merges"] = true;
  EXPECT_THAT(refusal(unreachable), HasSubstr("ignore_merges true"));
}

TEST_F(GgufTokenizer, AnAddedTokenBeyondTheVocabularyIsLeftOutAndNamed) {
  const auto written =
      entries(byte_level_tokenizer(pre_tokenizer_named("gpt-2")), 95);
  EXPECT_THAT(
      written.notes, Contains(HasSubstr("\"<|end|>\" is left out: its id 95")));
}

TEST_F(GgufTokenizer, BytesComeBackWithTheSameTokens) {
  const DecoderConfig config = config_of("LlamaForCausalLM");
  write_gguf_model(folder_ / "a.gguf", model_of(config, GgufType::kF16));
  import_gguf(folder_ / "a.gguf", folder_ / "out");
  const auto read = load_tokenizer((folder_ / "out").string());
  const auto bytes = load_tokenizer("bytes");
  const std::string text = "Twice two \u00e9\u4e2d\n\n  is 4";
  EXPECT_EQ(read->encode(text), bytes->encode(text));
  EXPECT_EQ(
      read->encode(text, {.special_tokens = SpecialTokens::kTemplate}),
      bytes->encode(text, {.special_tokens = SpecialTokens::kTemplate}));
  EXPECT_EQ(read->eos_id(), bytes->eos_id());
}

TEST_F(GgufTokenizer, ByteLevelComesBackWithItsAddedTokenInFront) {
  json tokenizer = byte_level_tokenizer(pre_tokenizer_named("qwen2"));
  json& vocabulary = tokenizer["model"]["vocab"];
  for (auto id = vocabulary.begin(); id != vocabulary.end(); ++id)
    *id = id->get<int64_t>() + 1;
  vocabulary["<|end|>"] = 0;
  tokenizer["added_tokens"][0]["id"] = 0;
  GgufModel model = model_of(config_of("LlamaForCausalLM"), GgufType::kF32);
  model.tokenizer = entries(tokenizer, model.config.vocab_size);
  write_gguf_model(folder_ / "a.gguf", model);
  import_gguf(folder_ / "a.gguf", folder_ / "out");
  const auto before = load_tokenizer(folder_.path().string());
  const auto after = load_tokenizer((folder_ / "out").string());
  const std::string text = "abab12,<|end|>(x)";
  EXPECT_EQ(after->encode(text), before->encode(text));
}

// If the file does not say, as in llama.cpp's llama_vocab::impl::load().
TEST_F(GgufTokenizer, TheFamilyDecidesWhetherTextsBeginWithBos) {
  constexpr uint32_t kEnd = 95;
  const std::map<std::string, bool> kBegins = {
      {"gpt-2", false},
      {"smollm", false},
      {"llama-bpe", true},
      {"smaug-bpe", false},
      {"qwen2", false},
      {"qwen35", false},
      {"tekken", true},
      {"gpt-4o", false}};
  for (const auto& [name, begins] : kBegins) {
    SCOPED_TRACE(name);
    GgufModel model = model_of(config_of("LlamaForCausalLM"), GgufType::kF32);
    model.tokenizer = entries(
        byte_level_tokenizer(pre_tokenizer_named("gpt-2")),
        model.config.vocab_size);
    std::erase_if(model.tokenizer.entries, [](const GgufEntry& entry) {
      return entry.key == "tokenizer.ggml.add_bos_token" ||
             entry.key == "tokenizer.ggml.bos_token_id" ||
             entry.key == "tokenizer.ggml.pre";
    });
    model.tokenizer.entries.push_back({"tokenizer.ggml.pre", name});
    model.tokenizer.entries.push_back({"tokenizer.ggml.bos_token_id", kEnd});
    write_gguf_model(folder_ / "a.gguf", model);
    std::filesystem::remove_all(folder_ / "out");
    import_gguf(folder_ / "a.gguf", folder_ / "out");
    const auto read = load_tokenizer((folder_ / "out").string());
    EXPECT_EQ(read->bos_id(), 95);
    EXPECT_EQ(read->eos_id(), std::nullopt);
    EXPECT_EQ(
        read->encode("ab", {.special_tokens = SpecialTokens::kTemplate}),
        begins ? std::vector<int32_t>({95, 94}) : std::vector<int32_t>({94}));
  }
}

TEST_F(GgufTokenizer, PadAndUnknownTokensComeBack) {
  const json tokenizer = byte_level_tokenizer(pre_tokenizer_named("gpt-2"));
  write_bytes(
      folder_ / "tokenizer_config.json",
      R"({"pad_token": {"content": "<|end|>"}, "unk_token": "b",
          "eos_token": "a"})");
  GgufModel model = model_of(config_of("LlamaForCausalLM"), GgufType::kF32);
  model.tokenizer = entries(tokenizer, model.config.vocab_size);
  EXPECT_EQ(std::get<uint32_t>(value(model.tokenizer, "padding_token_id")), 95);
  write_gguf_model(folder_ / "a.gguf", model);
  import_gguf(folder_ / "a.gguf", folder_ / "out");
  const json read =
      json::parse(read_text_file(folder_ / "out" / "tokenizer_config.json"));
  EXPECT_EQ(read["pad_token"], "<|end|>");
  EXPECT_EQ(read["unk_token"], "b");
  EXPECT_EQ(read["eos_token"], "a");
  EXPECT_EQ(read["bos_token"], nullptr);
  // An ordinary token stays one: a name would make it special.
  for (GgufEntry& entry : model.tokenizer.entries) {
    if (entry.key == "tokenizer.ggml.token_type")
      std::ranges::fill(std::get<std::vector<int32_t>>(entry.value), 1);
  }
  write_gguf_model(folder_ / "a.gguf", model);
  import_gguf(folder_ / "a.gguf", folder_ / "ordinary");
  const json ordinary = json::parse(
      read_text_file(folder_ / "ordinary" / "tokenizer_config.json"));
  EXPECT_EQ(ordinary["pad_token"], nullptr);
  EXPECT_EQ(ordinary["unk_token"], nullptr);
  EXPECT_EQ(ordinary["eos_token"], "a");
}

TEST_F(GgufTokenizer, AllChatTemplatesAreWritten) {
  const json tokenizer = byte_level_tokenizer(pre_tokenizer_named("gpt-2"));
  const auto templates = [&] {
    std::map<std::string, GgufValue> found;
    for (const GgufEntry& entry : entries(tokenizer).entries) {
      if (entry.key.starts_with("tokenizer.chat_template"))
        found[entry.key] = entry.value;
    }
    return found;
  };
  write_bytes(
      folder_ / "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "D"},
                            {"name": "rag", "template": "R"}]})");
  EXPECT_THAT(
      templates(),
      ElementsAre(
          Pair("tokenizer.chat_template", GgufValue(std::string("D"))),
          Pair("tokenizer.chat_template.rag", GgufValue(std::string("R"))),
          Pair(
              "tokenizer.chat_templates",
              GgufValue(std::vector<std::string>{"rag"}))));
  std::filesystem::create_directory(folder_ / "additional_chat_templates");
  write_bytes(folder_ / "chat_template.jinja", "J");
  write_bytes(folder_ / "additional_chat_templates/tools.jinja", "T");
  EXPECT_THAT(
      templates(),
      ElementsAre(
          Pair("tokenizer.chat_template", GgufValue(std::string("J"))),
          Pair("tokenizer.chat_template.tools", GgufValue(std::string("T"))),
          Pair(
              "tokenizer.chat_templates",
              GgufValue(std::vector<std::string>{"tools"}))));
}

TEST(GgufImport, NamesTensorsThatAreMissingOrSurplus) {
  const TemporaryFolder folder;
  const DecoderConfig config = config_of("LlamaForCausalLM");
  GgufModel model = model_of(config, GgufType::kF32);
  write_gguf_model(folder / "a.gguf", model);
  std::string bytes = read_text_file(folder / "a.gguf");
  const size_t at = bytes.find("blk.1.ffn_up.weight");
  bytes.replace(at, 19, "blk.1.ffn_xx.weight");
  write_bytes(folder / "b.gguf", bytes);
  EXPECT_THAT(
      [&] { import_gguf(folder / "b.gguf", folder / "out"); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr("'blk.1.ffn_up.weight' is missing"),
          HasSubstr("'blk.1.ffn_xx.weight' is surplus"))));
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(GgufImport, APartAndAnAdapterAreCalledSo) {
  const TemporaryFolder folder;
  for (const auto& [entry, reason] :
       {std::pair{
            GgufEntry{"general.type", std::string("adapter")},
            "it is of the type \"adapter\""},
        std::pair{GgufEntry{"split.count", uint32_t{2}}, "of 2 files"}}) {
    GgufWriter(
        folder / "a.gguf",
        {{"general.architecture", std::string("llama")}, entry},
        {})
        .commit();
    EXPECT_THAT(
        [&] { import_gguf(folder / "a.gguf", folder / "out"); },
        ThrowsMessage<DataError>(HasSubstr(reason)));
  }
}

TEST(GgufImport, AnotherArchitectureIsRefusedByName) {
  const TemporaryFolder folder;
  GgufWriter(
      folder / "a.gguf", {{"general.architecture", std::string("mamba")}}, {})
      .commit();
  EXPECT_THAT(
      [&] { import_gguf(folder / "a.gguf", folder / "out"); },
      ThrowsMessage<DataError>(
          HasSubstr("\"mamba\" is not read; llama, qwen2")));
}

}  // namespace
}  // namespace brigade
