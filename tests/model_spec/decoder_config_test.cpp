#include "brigade/model_spec/decoder_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/model_spec/model_warnings.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// config.json of HuggingFaceTB/SmolLM-135M, keys that matter.
json smollm() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 0,
    "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.02,
    "intermediate_size": 1536, "max_position_embeddings": 2048,
    "model_type": "llama", "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "torch_dtype": "float32",
    "transformers_version": "4.42.3", "use_cache": true,
    "vocab_size": 49152})");
}

// A small model of the given type.
json small(const std::string& model_type) {
  json config = {
      {"model_type", model_type},
      {"vocab_size", 96},
      {"hidden_size", 32},
      {"intermediate_size", 48},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 8}};
  if (model_type == "mistral")
    config["sliding_window"] = nullptr;
  return config;
}

DecoderConfig parse_valid(const json& config) {
  std::vector<std::string> problems;
  const DecoderConfig parsed = parse_decoder_config(config, "/model", problems);
  EXPECT_THAT(problems, IsEmpty());
  return parsed;
}

std::vector<std::string> problems_of(const json& config) {
  std::vector<std::string> problems;
  parse_decoder_config(config, "/model", problems);
  return problems;
}

json with(json config, const json& changes) {
  config.merge_patch(changes);
  return config;
}

TEST(DecoderConfig, ReadsSmolLMAndCountsItsPublishedParameters) {
  const DecoderConfig config = parse_valid(smollm());
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_key_value_heads, 3);
  EXPECT_EQ(config.bos_token_id, 0);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(0));
  EXPECT_EQ(parameter_count(config), 134515008);
}

TEST(DecoderConfig, CountsThePublishedParametersOfLlama2And3) {
  DecoderConfig config;
  config.vocab_size = 32000;
  config.hidden_size = 4096;
  config.intermediate_size = 11008;
  config.num_hidden_layers = 32;
  config.num_attention_heads = config.num_key_value_heads = 32;
  config.head_dim = 128;
  EXPECT_EQ(parameter_count(config), 6738415616);
  config.vocab_size = 128256;
  config.intermediate_size = 14336;
  config.num_key_value_heads = 8;
  EXPECT_EQ(parameter_count(config), 8030261248);
}

TEST(DecoderConfig, AbsentKeyValueHeadsMeanOnePerHead) {
  json config = smollm();
  config.erase("num_key_value_heads");
  EXPECT_EQ(parse_valid(config).num_key_value_heads, 9);
}

TEST(DecoderConfig, Qwen2HasBiasesOnQKVOnlyWithoutAnyKey) {
  const DecoderConfig config = parse_valid(small("qwen2"));
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.o_bias);
  EXPECT_FALSE(config.qk_norm);
}

TEST(DecoderConfig, AttentionBiasOfLlamaAndQwen3IncludesTheOutput) {
  for (const char* type : {"llama", "qwen3"}) {
    json json_config = small(type);
    json_config["attention_bias"] = true;
    const DecoderConfig config = parse_valid(json_config);
    EXPECT_TRUE(config.qkv_bias && config.o_bias) << type;
  }
}

const json kLlama3Rope = {
    {"rope_type", "llama3"},
    {"factor", 32.0},
    {"low_freq_factor", 1.0},
    {"high_freq_factor", 4.0},
    {"original_max_position_embeddings", 8192}};

TEST(DecoderConfig, KeysOfTransformers4And5MeanTheSame) {
  json v4 = small("llama");
  v4["rope_theta"] = 500000.0;
  v4["rope_scaling"] = kLlama3Rope;
  v4["torch_dtype"] = "bfloat16";
  json v5 = small("llama");
  v5["rope_parameters"] = kLlama3Rope;
  v5["rope_parameters"]["rope_theta"] = 500000.0;
  v5["dtype"] = "bfloat16";
  const DecoderConfig config = parse_valid(v4);
  EXPECT_EQ(config, parse_valid(v5));
  EXPECT_EQ(config.rope_theta, 500000.0);
  ASSERT_TRUE(config.rope_scaling);
  EXPECT_EQ(config.rope_scaling->factor, 32.0);
}

TEST(DecoderConfig, ConflictsBetweenOldAndNewKeysAreRefused) {
  json both = small("llama");
  both["rope_theta"] = 10000;
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  both["rope_scaling"] = kLlama3Rope;
  both["torch_dtype"] = "float32";
  both["dtype"] = "bfloat16";
  EXPECT_THAT(
      problems_of(both),
      ElementsAre(
          "/model/rope_parameters: conflicts with rope_scaling",
          "/model/rope_parameters/rope_theta: 500000 conflicts with "
          "rope_theta 10000 given elsewhere",
          "/model/dtype: \"bfloat16\" conflicts with torch_dtype "
          "\"float32\""));
}

TEST(DecoderConfig, OtherRopeTypesAreRefusedByName) {
  for (const char* key : {"rope_type", "type"}) {
    json config = small("llama");
    config["rope_scaling"] = {{key, "longrope"}, {"factor", 4.0}};
    EXPECT_THAT(
        problems_of(config),
        ElementsAre(AllOf(
            HasSubstr("/model/rope_scaling/"), HasSubstr("\"longrope\""))));
  }
}

TEST(DecoderConfig, WarnsOfARopeFactorWithoutItsType) {
  const auto warning = [](const std::string& name) {
    return HasSubstr("the model's " + name + " has a factor but no rope_type");
  };
  const json factor = {{"factor", 2.0}, {"type", nullptr}};
  EXPECT_THAT(
      model_warnings({{"rope_scaling", factor}}),
      ElementsAre(warning("rope_scaling")));
  EXPECT_THAT(
      model_warnings(
          {{"rope_parameters", {{"rope_theta", 5e5}, {"factor", 4}}}}),
      ElementsAre(warning("rope_parameters")));
  EXPECT_THAT(
      model_warnings({{"rope_parameters", {{"full_attention", factor}}}}),
      ElementsAre(warning("rope_parameters.full_attention")));
  for (const json& meant :
       {json(),
        json{{"type", "linear"}, {"factor", 2}},
        json{{"rope_type", "default"}, {"factor", 2}},
        json{{"factor", nullptr}},
        json("linear")})
    EXPECT_THAT(model_warnings({{"rope_scaling", meant}}), ElementsAre());
  EXPECT_THAT(model_warnings(json::array()), ElementsAre());
}

TEST(DecoderConfig, ReadsEveryRopeTypeWithTransformersDefaults) {
  const auto scaling_of = [](const json& scaling) {
    json config = small("llama");
    config["max_position_embeddings"] = 512;
    config["rope_scaling"] = scaling;
    return parse_valid(config).rope_scaling.value_or(RopeScaling{.factor = 0});
  };
  const RopeScaling linear = scaling_of({{"type", "linear"}, {"factor", 2}});
  EXPECT_EQ(linear.type, RopeType::kLinear);
  EXPECT_EQ(linear.factor, 2);
  EXPECT_EQ(
      scaling_of({{"rope_type", "dynamic"}, {"factor", 4}}),
      (RopeScaling{
          .type = RopeType::kDynamic,
          .factor = 4,
          .original_max_position_embeddings = 512}));
  EXPECT_EQ(
      scaling_of(
          {{"rope_type", "yarn"},
           {"factor", nullptr},
           {"beta_fast", nullptr},
           {"truncate", nullptr},  // false, as transformers reads it
           {"original_max_position_embeddings", 128}}),
      (RopeScaling{
          .type = RopeType::kYarn,
          .factor = 4,
          .original_max_position_embeddings = 128,
          .truncates = false}));
  EXPECT_EQ(
      scaling_of(
          {{"rope_type", "yarn"},
           {"factor", 8},
           {"beta_fast", 16},
           {"beta_slow", 2},
           {"truncate", false},
           {"attention_factor", 0.5},
           {"mscale", 1},
           {"mscale_all_dim", 2}}),
      (RopeScaling{
          .type = RopeType::kYarn,
          .factor = 8,
          .original_max_position_embeddings = 512,
          .beta_fast = 16,
          .beta_slow = 2,
          .truncates = false,
          .attention_factor = 0.5,
          .mscale = 1,
          .mscale_all_dim = 2}));
}

TEST(DecoderConfig, NullAndEmptyMeanTheDefault) {
  const DecoderConfig plain = parse_valid(small("llama"));
  for (const char* key :
       {"architectures",
        "head_dim",
        "tie_word_embeddings",
        "attention_bias",
        "mlp_bias",
        "rope_scaling",
        "rope_parameters",
        "quantization_config",
        "attention_dropout",
        "sliding_window",
        "torch_dtype",
        "dtype",
        "bos_token_id",
        "eos_token_id"}) {
    json config = small("llama");
    config[key] = nullptr;
    EXPECT_EQ(parse_valid(config), plain) << key;
  }
  for (const char* key :
       {"rope_scaling", "rope_parameters", "quantization_config"}) {
    json config = small("llama");
    config[key] = json::object();
    EXPECT_EQ(parse_valid(config), plain) << key;
  }
  json config = small("llama");
  config["architectures"] = json::array();
  config["bos_token_id"] = -1;
  config["eos_token_id"] = -1;
  EXPECT_EQ(parse_valid(config), plain);
}

TEST(DecoderConfig, AnyKnownClassNamesTheArchitecture) {
  for (const json& names :
       {json{"LlamaModel"},
        json{"LlamaForCausalLM", "LlamaModel"},
        json{"SomethingElse", "LlamaForCausalLM"}}) {
    json config = small("llama");
    config["architectures"] = names;
    EXPECT_EQ(parse_valid(config).architecture, Architecture::kLlama);
  }
}

TEST(DecoderConfig, MistralsWindowIsItsKeyOrTransformersDefault) {
  json config = small("mistral");
  EXPECT_EQ(parse_valid(config).sliding_window, std::nullopt);
  config["sliding_window"] = 16;
  EXPECT_EQ(parse_valid(config).sliding_window, 16);
  config.erase("sliding_window");
  EXPECT_EQ(parse_valid(config).sliding_window, 4096);
}

TEST(DecoderConfig, QwensWindowCountsOnlyWhereItIsUsed) {
  json config = small("qwen2");
  config["sliding_window"] = 16;
  config["max_window_layers"] = 0;
  config["use_sliding_window"] = false;
  EXPECT_EQ(parse_valid(config).sliding_window, std::nullopt);
  config["use_sliding_window"] = true;
  EXPECT_EQ(parse_valid(config).sliding_window, 16);
  config["max_window_layers"] = 2;
  EXPECT_EQ(parse_valid(config).sliding_window, std::nullopt);
  config["max_window_layers"] = 1;
  EXPECT_THAT(
      problems_of(config),
      ElementsAre(HasSubstr("/model/max_window_layers: gives some layers")));
  config["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(parse_valid(config).sliding_window, std::nullopt);
  config["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(parse_valid(config).sliding_window, 16);
  config["layer_types"] = {"full_attention", "linear_attention"};
  EXPECT_THAT(
      problems_of(config),
      ElementsAre(AllOf(
          HasSubstr("/model/layer_types"), HasSubstr("linear_attention"))));
  config["layer_types"] = {"sliding_attention", "sliding_attention"};
  config["use_sliding_window"] = false;
  EXPECT_THAT(
      problems_of(config),
      ElementsAre("/model/use_sliding_window: must be true for the layers that "
                  "slide"));
}

TEST(DecoderConfig, AttentionInBothDirectionsIsRefused) {
  json config = small("qwen3");
  const DecoderConfig plain = parse_valid(config);
  config["is_causal"] = true;
  EXPECT_EQ(parse_valid(config), plain);
  config["is_causal"] = false;
  EXPECT_THAT(
      problems_of(config),
      ElementsAre(HasSubstr("/model/is_causal: false is not supported")));
}

TEST(DecoderConfig, EveryProblemIsReportedWithItsPointerAndValue) {
  json config = small("llama");
  config["hidden_act"] = "gelu";
  config["num_key_value_heads"] = 3;
  config["rms_norm_eps"] = "tiny";
  config["vocab_size"] = -5;
  config["partial_rotary_factor"] = 0.5;
  config["quantization_config"] = {{"bits", 4}};
  config["eos_token_id"] = {2, "x"};
  config.erase("intermediate_size");
  const auto problems = problems_of(config);
  const auto has = [&](const char* pointer, const char* value) {
    for (const std::string& problem : problems) {
      if (problem.find(pointer) == 0 &&
          problem.find(value) != std::string::npos)
        return true;
    }
    return false;
  };
  EXPECT_TRUE(has("/model/hidden_act: ", "gelu"));
  EXPECT_TRUE(has("/model/num_key_value_heads: ", "3"));
  EXPECT_TRUE(has("/model/rms_norm_eps: ", "tiny"));
  EXPECT_TRUE(has("/model/vocab_size: ", "-5"));
  EXPECT_TRUE(has("/model/partial_rotary_factor: ", "0.5"));
  EXPECT_TRUE(has("/model/quantization_config: ", "bits"));
  EXPECT_TRUE(has("/model/eos_token_id: ", "\"x\""));
  EXPECT_TRUE(has("/model/intermediate_size: ", "missing"));
  EXPECT_EQ(problems.size(), 8U);
}

// What keys of another kind of model mean is not known.
TEST(DecoderConfig, ReportsNothingElseOfARefusedArchitecture) {
  for (const char* key : {"architectures", "model_type"}) {
    json config = {{"n_embd", 768}, {"vocab_size", -5}};
    if (key == std::string("architectures"))
      config[key] = json::array({"GPT2LMHeadModel"});
    else
      config[key] = "gpt2";
    EXPECT_THAT(
        problems_of(config),
        ElementsAre(HasSubstr(std::string("/model/") + key + ": ")));
  }
}

TEST(DecoderConfig, UnknownKeysAreIgnored) {
  EXPECT_EQ(
      parse_valid(with(smollm(), {{"_name_or_path", "x"}, {"is_llama", 1}})),
      parse_valid(smollm()));
}

TEST(DecoderConfig, ClassAndTypeMustAgree) {
  EXPECT_THAT(
      problems_of(with(smollm(), {{"model_type", "mistral"}})),
      ::testing::Contains(HasSubstr("/model/model_type: \"mistral\"")));
}

TEST(DecoderConfig, DefaultsOnWhichReadersDisagreeMustBeWritten) {
  json config = small("qwen3");
  config.erase("head_dim");
  EXPECT_THAT(
      problems_of(config),
      ElementsAre(AllOf(
          HasSubstr("/model/head_dim"), HasSubstr("128"), HasSubstr("8"))));
}

// From transformers 5.23's configuration_*.py, and 4's: a class without its
// arguments.
TEST(DecoderConfig, AbsentKeysMeanWhatTransformersTakes) {
  struct Absent {
    const char* type;
    int64_t positions;
    double eps;
    double theta;
    int64_t kv_heads;  // 0: as many as heads
  };
  const std::vector<Absent> kAbsent = {
      {"llama", 2048, 1e-6, 1e4, 0},
      {"mistral", 131072, 1e-6, 1e4, 8},
      {"qwen2", 32768, 1e-6, 1e4, 32},
      {"qwen3", 32768, 1e-6, 1e4, 32},
      {"gemma2", 8192, 1e-6, 1e4, 4},
      {"gemma3_text", 131072, 1e-6, 1e6, 4},
      {"mixtral", 131072, 1e-5, 1e6, 8},
      {"qwen2_moe", 32768, 1e-6, 1e4, 16},
      {"qwen3_moe", 32768, 1e-6, 1e4, 4},
      {"olmoe", 4096, 1e-5, 1e4, 0},
      {"dots1", 2048, 1e-6, 1e4, 32},
      {"glm4_moe", 131072, 1e-5, 1e4, 8}};
  for (const Absent& absent : kAbsent) {
    SCOPED_TRACE(absent.type);
    json config = small(absent.type);
    // What else it needs, and what no test of an absent key is about.
    config.update(
        {{"num_local_experts", 4},
         {"num_experts", 4},
         {"n_routed_experts", 4},
         {"num_experts_per_tok", 2},
         {"moe_intermediate_size", 16},
         {"n_group", 1},
         {"topk_group", 1}});
    std::vector<std::string> problems;
    const DecoderConfig parsed = parse_decoder_config(config, "", problems);
    EXPECT_EQ(parsed.max_position_embeddings, absent.positions);
    EXPECT_EQ(parsed.rms_norm_eps, absent.eps);
    EXPECT_EQ(parsed.rope_theta, absent.theta);
    config.erase("num_key_value_heads");
    config["num_attention_heads"] = 2;
    problems.clear();
    parse_decoder_config(config, "", problems);
    const std::string expected =
        absent.kv_heads == 0
            ? ""
            : fmt::format("transformers would take {}, ", absent.kv_heads);
    const bool is_named =
        std::any_of(problems.begin(), problems.end(), [&](const auto& each) {
          return each.find("num_key_value_heads") != std::string::npos &&
                 each.find(expected) != std::string::npos;
        });
    EXPECT_EQ(is_named, absent.kv_heads != 0);
    // Null is as many as heads to transformers too.
    config["num_key_value_heads"] = nullptr;
    problems.clear();
    EXPECT_EQ(
        parse_decoder_config(config, "", problems).num_key_value_heads, 2);
    EXPECT_THAT(
        problems,
        Not(Contains(
            AllOf(HasSubstr("num_key_value_heads"), HasSubstr("is missing")))));
  }
}

TEST(DecoderConfig, SizesThatOverflowAreRefused) {
  EXPECT_THAT(
      problems_of(with(small("llama"), {{"hidden_size", 9223372036854775807}})),
      ElementsAre(HasSubstr("/model/hidden_size: 9223372036854775807")));
  EXPECT_THAT(
      problems_of(
          with(small("llama"), {{"hidden_size", 18446744073709551615U}})),
      ElementsAre(HasSubstr("/model/hidden_size: 18446744073709551615")));
  EXPECT_THAT(
      problems_of(with(
          small("llama"),
          {{"num_attention_heads", 1 << 20}, {"head_dim", 1 << 20}})),
      ElementsAre(HasSubstr("/model/head_dim: 1048576")));
  const int64_t widest = 1 << 24;
  EXPECT_THAT(
      problems_of(with(
          small("llama"),
          {{"hidden_size", widest},
           {"intermediate_size", widest},
           {"num_hidden_layers", 1 << 14}})),
      ElementsAre(HasSubstr("/model/num_hidden_layers: 16384")));
}

TEST(DecoderConfig, AConfigThatIsNoObjectIsAProblem) {
  EXPECT_THAT(
      problems_of(json::array({1})), ElementsAre(HasSubstr("/model: [1]")));
}

TEST(DecoderConfig, HuggingFaceJsonReadsBackEqual) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    json json_config = small(type);
    json_config["rope_scaling"] = kLlama3Rope;
    json_config["rope_theta"] = 1e6;
    json_config["bos_token_id"] = 1;
    json_config["eos_token_id"] = {2, 7};
    json_config["rms_norm_eps"] = 1e-5;
    json_config["tie_word_embeddings"] = true;
    if (std::string(type) == "mistral")
      json_config["sliding_window"] = 512;
    if (std::string(type) == "llama")
      json_config["mlp_bias"] = true;
    for (const json& scaling :
         {kLlama3Rope,
          json{{"rope_type", "linear"}, {"factor", 2.0}},
          json{{"rope_type", "dynamic"}, {"factor", 2.0}},
          json{
              {"rope_type", "yarn"},
              {"factor", 2.0},
              {"beta_fast", 16.0},
              {"truncate", false},
              {"attention_factor", 0.5},
              {"original_max_position_embeddings", 64}}}) {
      json_config["rope_scaling"] = scaling;
      const DecoderConfig config = parse_valid(json_config);
      const json written = to_hugging_face_json(config, "bfloat16");
      EXPECT_EQ(written["torch_dtype"], "bfloat16");
      EXPECT_EQ(parse_valid(written), config) << written.dump(1);
    }
  }
}

// config.json of google/gemma-2-2b, keys that matter.
json gemma2_2b() {
  return json::parse(R"({
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "eos_token_id": 1,
    "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304,
    "intermediate_size": 9216, "max_position_embeddings": 8192,
    "model_type": "gemma2", "num_attention_heads": 8, "num_hidden_layers": 26,
    "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
    "vocab_size": 256000})");
}

// config.json of google/gemma-3-1b-pt, keys that matter.
json gemma3_1b() {
  return json::parse(R"({
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
    "attn_logit_softcapping": null, "final_logit_softcapping": null,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152, "intermediate_size": 6912,
    "max_position_embeddings": 32768, "model_type": "gemma3_text",
    "num_attention_heads": 4, "num_hidden_layers": 26,
    "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000,
    "rope_scaling": null, "rope_theta": 1000000, "sliding_window": 512,
    "sliding_window_pattern": 6, "vocab_size": 262144})");
}

TEST(DecoderConfig, CountsThePublishedParametersOfGemma) {
  EXPECT_EQ(parameter_count(parse_valid(gemma2_2b())), 2614341888);
  EXPECT_EQ(parameter_count(parse_valid(gemma3_1b())), 999885952);
}

TEST(DecoderConfig, GemmasHeadIsTiedUnlessTheFileSaysOtherwise) {
  EXPECT_TRUE(parse_valid(gemma2_2b()).tie_word_embeddings);
  EXPECT_FALSE(parse_valid(with(gemma3_1b(), {{"tie_word_embeddings", false}}))
                   .tie_word_embeddings);
}

TEST(DecoderConfig, Gemma2SlidesInEverySecondLayer) {
  const DecoderConfig config = parse_valid(gemma2_2b());
  ASSERT_EQ(config.layer_types.size(), 26U);
  for (size_t i = 0; i < 26; ++i) {
    EXPECT_EQ(
        config.layer_types[i],
        i % 2 == 0 ? LayerType::kSlidingAttention : LayerType::kFullAttention)
        << i;
  }
  EXPECT_EQ(config.sliding_window, 4096);
}

TEST(DecoderConfig, Gemma3SeesEverythingInEverySixthLayerOrAsLayerTypesSay) {
  const auto full_layers = [](const DecoderConfig& config) {
    std::vector<size_t> layers;
    for (size_t i = 0; i < config.layer_types.size(); ++i) {
      if (config.layer_types[i] == LayerType::kFullAttention)
        layers.push_back(i);
    }
    return layers;
  };
  EXPECT_THAT(
      full_layers(parse_valid(gemma3_1b())), ElementsAre(5, 11, 17, 23));
  EXPECT_THAT(
      full_layers(parse_valid(with(
          gemma3_1b(),
          {{"num_hidden_layers", 2},
           {"layer_types", {"full_attention", "sliding_attention"}}}))),
      ElementsAre(0));
}

TEST(DecoderConfig, GemmasCapsHaveDefaultsThatNullTurnsOff) {
  json config = gemma2_2b();
  config.erase("attn_logit_softcapping");
  config["final_logit_softcapping"] = nullptr;
  const DecoderConfig parsed = parse_valid(config);
  EXPECT_EQ(parsed.attn_logit_softcapping, 50.0);
  EXPECT_EQ(parsed.final_logit_softcapping, std::nullopt);
  EXPECT_EQ(parse_valid(gemma3_1b()).final_logit_softcapping, std::nullopt);
}

TEST(DecoderConfig, Gemma3ReadsTheRopeOfEitherVersionOfTransformers) {
  const DecoderConfig v4 = parse_valid(with(
      gemma3_1b(),
      {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}));
  json v5_json = gemma3_1b();
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"})
    v5_json.erase(key);
  v5_json["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1000000.0}}},
      {"sliding_attention",
       {{"rope_type", "default"}, {"rope_theta", 10000.0}}}};
  EXPECT_EQ(parse_valid(v5_json), v4);
  ASSERT_TRUE(v4.rope_scaling);
  EXPECT_EQ(v4.rope_scaling->type, RopeType::kLinear);
  EXPECT_EQ(v4.rope_scaling->factor, 8.0);
  EXPECT_EQ(v4.rope_local_base_freq, 10000.0);
}

TEST(DecoderConfig, GemmaIsWrittenAsItIsRead) {
  for (const json& config :
       {gemma2_2b(),
        gemma3_1b(),
        with(
            gemma3_1b(),
            {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
             {"final_logit_softcapping", 20.0}})}) {
    const DecoderConfig parsed = parse_valid(config);
    const json written = to_hugging_face_json(parsed, "float32");
    EXPECT_EQ(parse_valid(written), parsed) << written.dump();
    EXPECT_EQ(written["architectures"], config["architectures"]);
  }
}

TEST(DecoderConfig, RefusesKeysThatDoNotFitGemma) {
  EXPECT_THAT(
      problems_of(with(
          gemma3_1b(),
          {{"attn_logit_softcapping", 50.0},
           {"use_bidirectional_attention", true},
           {"hidden_activation", "silu"}})),
      ElementsAre(
          "/model/hidden_activation: \"silu\" is not supported; only "
          "\"gelu_pytorch_tanh\" is",
          "/model/attn_logit_softcapping: 50, but Gemma 3's attention has no "
          "soft-cap",
          "/model/use_bidirectional_attention: true is not supported; "
          "attention is causal"));
  json config = gemma2_2b();
  config["sliding_window"] = nullptr;
  EXPECT_THAT(
      problems_of(config),
      ElementsAre(
          "/model/sliding_window: is null; the sliding layers need it"));
  EXPECT_THAT(
      problems_of(with(
          gemma3_1b(),
          {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 8.0}}}})),
      ElementsAre(
          "/model/rope_scaling/rope_type: \"longrope\" is not supported; "
          "\"default\", \"linear\", \"dynamic\", \"yarn\" and \"llama3\" are"));
  const auto linear = [](double factor) {
    return json{{"rope_type", "linear"}, {"factor", factor}};
  };
  EXPECT_THAT(
      problems_of(with(
          gemma3_1b(),
          {{"rope_scaling", linear(8)},
           {"rope_parameters", {{"full_attention", linear(4)}}}})),
      ElementsAre("/model/rope_parameters/full_attention: conflicts with "
                  "rope_scaling"));
}

TEST(DecoderConfig, AConfigThatIsNoObjectIsNamedByItsPlace) {
  for (const auto& [place, expected] :
       {std::pair{"", "/: "},
        std::pair{"/model/config", "/model/config: "},
        std::pair{"config.json: ", "config.json: /: "}}) {
    std::vector<std::string> problems;
    parse_decoder_config(json::array(), place, problems);
    EXPECT_THAT(
        problems,
        ElementsAre(StartsWith(expected + std::string("[] is not an object"))));
  }
}

json small_with_experts(const std::string& model_type) {
  json config = small(model_type);
  config["num_experts"] = 4;
  config["num_experts_per_tok"] = 2;
  config["moe_intermediate_size"] = 16;
  return config;
}

TEST(DecoderConfigExperts, AreReadUnderEachArchitecturesNames) {
  json mixtral = small("mixtral");
  mixtral["num_local_experts"] = 4;
  mixtral["num_experts_per_tok"] = 2;
  EXPECT_EQ(parse_valid(mixtral).experts->width, 48);
  EXPECT_TRUE(parse_valid(mixtral).experts->norm_topk_prob);

  const json qwen = small_with_experts("qwen3_moe");
  EXPECT_EQ(parse_valid(qwen).experts->width, 16);
  EXPECT_FALSE(parse_valid(qwen).experts->norm_topk_prob);
  EXPECT_TRUE(parse_valid(qwen).qk_norm);

  json by_transformers = qwen;
  by_transformers.erase("num_experts");
  by_transformers["num_local_experts"] = 8;
  EXPECT_EQ(parse_valid(by_transformers).experts->num_experts, 8);
}

json small_dots1() {
  json config = small_with_experts("dots1");
  config.erase("num_experts");
  config["n_routed_experts"] = 4;
  return config;
}

json small_qwen2_moe() {
  return with(
      small_with_experts("qwen2_moe"),
      {{"shared_expert_intermediate_size", 24}});
}

// transformers' configuration_qwen2_moe.py, whose rule is not dense Qwen2's.
TEST(DecoderConfigExperts, Qwen2MoesWindowIsThatOfEveryOtherLayer) {
  json config = with(
      small_qwen2_moe(), {{"use_sliding_window", true}, {"sliding_window", 4}});
  EXPECT_THAT(
      problems_of(config),
      ElementsAre(StartsWith(
          "/model/use_sliding_window: gives some layers a sliding window")));
  // As earlier versions of Brigade wrote a window in all layers.
  config["max_window_layers"] = 0;
  EXPECT_THAT(
      problems_of(config),
      ElementsAre(AllOf(
          StartsWith("/model/layer_types: is missing"),
          EndsWith("give layer_types"))));
  EXPECT_EQ(
      parse_valid(
          with(config, {{"layer_types", {"full_attention", "full_attention"}}}))
          .sliding_window,
      std::nullopt);
  config["max_window_layers"] = 1;
  config["num_hidden_layers"] = 1;
  EXPECT_EQ(parse_valid(config).sliding_window, 4);

  config["num_hidden_layers"] = 2;
  config["layer_types"] = {"sliding_attention", "sliding_attention"};
  const DecoderConfig parsed = parse_valid(config);
  EXPECT_EQ(parsed.sliding_window, 4);
  // Without the list transformers would give it another window.
  const json written = to_hugging_face_json(parsed, "float32");
  EXPECT_EQ(written["layer_types"], config["layer_types"]);
  EXPECT_EQ(parse_valid(written), parsed);

  // As transformers writes none.
  config = with(
      small_qwen2_moe(),
      {{"sliding_window", 0},
       {"layer_types", {"full_attention", "full_attention"}}});
  EXPECT_EQ(parse_valid(config).sliding_window, std::nullopt);
}

TEST(DecoderConfigExperts, AnAbsentWindowIsTransformersAndNullIsNone) {
  json dots1 = small_dots1();
  EXPECT_EQ(parse_valid(dots1).sliding_window, std::nullopt);  // of 62
  dots1["max_window_layers"] = 0;
  const json qwen = {{"use_sliding_window", true}, {"max_window_layers", 0}};
  for (json config :
       {dots1,
        with(small_with_experts("qwen3_moe"), qwen),
        with(small("qwen3"), qwen),
        with(small("qwen2"), qwen)}) {
    EXPECT_EQ(parse_valid(config).sliding_window, 4096) << config;
    const json written = to_hugging_face_json(parse_valid(config), "float32");
    EXPECT_EQ(written["sliding_window"], 4096);
    EXPECT_EQ(parse_valid(written), parse_valid(config));
    config["sliding_window"] = nullptr;
    EXPECT_EQ(parse_valid(config).sliding_window, std::nullopt) << config;
  }
  dots1["max_window_layers"] = 1;
  EXPECT_THAT(
      problems_of(dots1),
      ElementsAre(StartsWith("/model/max_window_layers: gives some layers")));
}

TEST(DecoderConfigExperts, LayerTypesThatTransformersDoesNotReadMustAgree) {
  json mixtral = small("mixtral");
  mixtral["num_local_experts"] = 4;
  mixtral["num_experts_per_tok"] = 2;
  for (const json& config :
       {with(mixtral, {{"sliding_window", 4}}),
        with(
            small_with_experts("qwen3_moe"),
            {{"use_sliding_window", true}, {"sliding_window", 4}})}) {
    const json all = {"sliding_attention", "sliding_attention"};
    EXPECT_EQ(
        parse_valid(with(config, {{"layer_types", all}})), parse_valid(config));
    EXPECT_THAT(
        problems_of(with(
            config,
            {{"layer_types", {"full_attention", "sliding_attention"}}})),
        ElementsAre(AllOf(
            StartsWith("/model/layer_types: is not obeyed by "),
            EndsWith("of which all layers have a sliding window here; leave it "
                     "out"))));
  }
  const json slides = {
      {"layer_types", {"sliding_attention", "sliding_attention"}}};
  for (const json& config : {mixtral, small("llama")}) {
    EXPECT_THAT(
        problems_of(with(config, slides)),
        ElementsAre(AllOf(
            StartsWith("/model/layer_types: is not obeyed by "),
            HasSubstr("of which no layers have"))));
  }
  EXPECT_THAT(
      problems_of(with(with(small("llama"), slides), {{"sliding_window", 8}})),
      ElementsAre(HasSubstr("LlamaForCausalLM has no sliding window")));
}

// transformers' AutoConfig reads it as Ministral.
TEST(DecoderConfig, MistralObeysLayerTypes) {
  const json mistral = with(small("mistral"), {{"sliding_window", 4}});
  const auto with_types = [&](const char* first, const char* second) {
    return with(mistral, {{"layer_types", {first, second}}});
  };
  EXPECT_EQ(
      parse_valid(with_types("full_attention", "full_attention"))
          .sliding_window,
      std::nullopt);
  EXPECT_EQ(
      parse_valid(with_types("sliding_attention", "sliding_attention"))
          .sliding_window,
      4);
  EXPECT_THAT(
      problems_of(with_types("full_attention", "sliding_attention")),
      ElementsAre(StartsWith("/model/layer_types: gives some layers")));
}

// transformers refuses a list of another length, of any architecture.
TEST(DecoderConfigExperts, AShorterModelIsWrittenWithShorterLists) {
  json source = with(
      small_qwen2_moe(),
      {{"use_sliding_window", true},
       {"sliding_window", 4},
       {"mlp_only_layers", {0, 3}},
       {"layer_types",
        {"sliding_attention", "sliding_attention", "full_attention"}}});
  json written = to_hugging_face_json(parse_valid(source), "float32", source);
  EXPECT_EQ(
      written["layer_types"], json({"sliding_attention", "sliding_attention"}));
  EXPECT_EQ(written["mlp_only_layers"], json::array({0}));

  source = with(
      small("llama"),
      {{"layer_types",
        {"full_attention", "full_attention", "full_attention"}}});
  written = to_hugging_face_json(parse_valid(source), "float32", source);
  EXPECT_EQ(written["layer_types"], json({"full_attention", "full_attention"}));
}

// Five layers, as transformers decides them.
TEST(DecoderConfigExperts, SparseLayersFollowStepAndList) {
  const auto sparse = [](int64_t step, const std::vector<int64_t>& dense) {
    const ExpertsConfig experts{
        .decoder_sparse_step = step, .mlp_only_layers = dense};
    std::vector<int> layers;
    for (int layer = 0; layer < 5; ++layer) {
      if (experts.is_sparse(layer))
        layers.push_back(layer);
    }
    return layers;
  };
  EXPECT_THAT(sparse(2, {}), ElementsAre(1, 3));
  EXPECT_THAT(sparse(1, {0, 3}), ElementsAre(1, 2, 4));
  EXPECT_THAT(sparse(2, {3}), ElementsAre(1));
}

TEST(DecoderConfigExperts, WriteWhatTheyWereReadFrom) {
  json qwen2 = small_qwen2_moe();
  qwen2["mlp_only_layers"] = {1};
  json olmoe = small_with_experts("olmoe");
  olmoe.erase("moe_intermediate_size");
  json dots1 = small_dots1();
  dots1["n_shared_experts"] = 2;
  dots1["n_group"] = 2;
  dots1["topk_group"] = 1;
  dots1["first_k_dense_replace"] = 1;
  dots1["routed_scaling_factor"] = 2.5;
  json glm = small_with_experts("glm4_moe");
  glm.erase("num_experts");
  glm["n_routed_experts"] = 4;
  glm["use_qk_norm"] = true;
  glm["attention_bias"] = true;
  glm["partial_rotary_factor"] = 0.5;
  for (const json& config :
       {small_with_experts("qwen3_moe"), qwen2, olmoe, dots1, glm}) {
    const DecoderConfig parsed = parse_valid(config);
    ASSERT_TRUE(parsed.experts.has_value());
    EXPECT_EQ(parse_valid(to_hugging_face_json(parsed, "float32")), parsed)
        << config["model_type"];
  }
}

TEST(DecoderConfigExperts, Dots1SaysWhatVllmReads) {
  json dots1 = small_dots1();
  const DecoderConfig parsed = parse_valid(dots1);
  const json written = to_hugging_face_json(parsed, "float32");
  EXPECT_EQ(written["scoring_func"], "sigmoid");
  EXPECT_EQ(written["topk_method"], "noaux_tc");
  EXPECT_EQ(written["moe_layer_freq"], 1);

  // As its first files had it.
  dots1["scoring_func"] = "noaux_tc";
  EXPECT_EQ(parse_valid(dots1), parsed);
  dots1["scoring_func"] = "softmax";
  EXPECT_THAT(
      problems_of(dots1).front(),
      StartsWith("/model/scoring_func: \"softmax\" is not supported"));
}

// transformers' configuration_glm4_moe.py.
TEST(DecoderConfigExperts, Glm4MoesDefaultsAreItsOwn) {
  json glm = small_with_experts("glm4_moe");
  glm.erase("num_experts");
  glm["n_routed_experts"] = 4;
  const DecoderConfig parsed = parse_valid(glm);
  EXPECT_EQ(parsed.experts->first_k_dense_replace, 1);
  EXPECT_EQ(parsed.experts->shared_width, 16);
  EXPECT_TRUE(parsed.experts->norm_topk_prob);
  EXPECT_EQ(parsed.partial_rotary_factor, 0.5);
  EXPECT_FALSE(parsed.qk_norm);
  EXPECT_FALSE(parsed.qkv_bias);

  // As transformers 5 writes it.
  glm["rope_parameters"] = {
      {"rope_type", "default"},
      {"rope_theta", 500.0},
      {"partial_rotary_factor", 1.0}};
  EXPECT_EQ(parse_valid(glm).partial_rotary_factor, 1.0);
  glm["rope_parameters"]["partial_rotary_factor"] = 0.01;
  EXPECT_THAT(
      problems_of(glm).front(),
      StartsWith("/model/partial_rotary_factor: 0.01 of head_dim "));
  glm["rope_parameters"] = {
      {"rope_type", "linear"}, {"factor", 2.0}, {"partial_rotary_factor", 0.5}};
  EXPECT_THAT(
      problems_of(glm).front(),
      StartsWith("/model/partial_rotary_factor: 0.5 beside rope_type "));
}

TEST(DecoderConfigExperts, WrongValuesAreNamed) {
  const auto first_problem = [](const char* key, const json& value) {
    json config = small_with_experts("qwen3_moe");
    config[key] = value;
    const auto problems = problems_of(config);
    return problems.empty() ? std::string() : problems.front();
  };
  EXPECT_EQ(
      first_problem("num_experts_per_tok", 5),
      "/model/num_experts_per_tok: 5 experts for each token, but there are 4");
  EXPECT_EQ(
      first_problem("num_local_experts", 8),
      "/model/num_local_experts: 8 conflicts with num_experts 4");
  EXPECT_EQ(
      first_problem("decoder_sparse_step", 0),
      "/model/decoder_sparse_step: 0 is not an integer from 1 to 16384");
  EXPECT_EQ(
      first_problem("mlp_only_layers", {0, -1}),
      "/model/mlp_only_layers: -1 is no index of a layer");
  EXPECT_THAT(
      first_problem("router_temperature", 2.0),
      StartsWith("/model/router_temperature: 2.0 is not supported; of the "
                 "router and the experts known are num_experts_per_tok"));
  EXPECT_THAT(
      first_problem("capacity_factor", 1.25),
      StartsWith("/model/capacity_factor: 1.25 is not supported"));
  EXPECT_THAT(
      first_problem("score_func", "sigmoid"),
      StartsWith("/model/score_func: \"sigmoid\" is not supported"));
  EXPECT_THAT(
      first_problem("routed_scaling_factor", 2.5),
      StartsWith("/model/routed_scaling_factor: 2.5 is not supported"));
  EXPECT_EQ(first_problem("routed_scaling_factor", 1.0), "");
  EXPECT_EQ(first_problem("moe_layer_freq", 1), "");
  EXPECT_THAT(
      first_problem("moe_layer_freq", 2),
      StartsWith("/model/moe_layer_freq: 2 is not supported"));
  json olmoe = small_with_experts("olmoe");
  olmoe.erase("moe_intermediate_size");
  olmoe["mlp_only_layers"] = {1};
  olmoe["decoder_sparse_step"] = 1;
  EXPECT_THAT(
      problems_of(olmoe),
      ElementsAre(StartsWith("/model/mlp_only_layers: [1] is not supported")));
}

}  // namespace
}  // namespace brigade
