// Commands on models, tokenizers and texts that other programs wrote.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <random>

#include "brigade/files/file.h"
#include "brigade/safetensors/writer.h"
#include "tests/cli/program.h"
#include "tests/support/write_safetensors.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

constexpr int kHidden = 16;
constexpr int kInner = 24;

// One token per character, <unk>, <s>, </s>, and `more` behind them.
json character_tokenizer(const std::vector<std::string>& more) {
  json vocabulary = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (const char c : std::string("abcdefghijklmnopqrstuvwxyz ."))
    vocabulary[std::string(1, c)] = vocabulary.size();
  json added = json::array();
  for (const std::string& token : more) {
    added.push_back(
        {{"id", vocabulary.size() + added.size()},
         {"content", token},
         {"single_word", false},
         {"lstrip", false},
         {"rstrip", false},
         {"normalized", false},
         {"special", true}});
  }
  return {
      {"version", "1.0"},
      {"added_tokens", added},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"vocab", vocabulary},
        {"merges", json::array()}}}};
}

json config_of(int64_t vocab_size) {
  return {
      {"architectures", {"LlamaForCausalLM"}},
      {"model_type", "llama"},
      {"vocab_size", vocab_size},
      {"hidden_size", kHidden},
      {"intermediate_size", kInner},
      {"num_hidden_layers", 1},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 1},
      {"max_position_embeddings", 128},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", 10000.0},
      {"tie_word_embeddings", true},
      {"torch_dtype", "float32"}};
}

class ForeignFiles : public ProgramTest {
 protected:
  static constexpr int64_t kTokens = 31;

  void write_model(
      const std::string& name,
      const json& config,
      const json& tokenizer) const {
    const fs::path folder = folder_ / name;
    fs::create_directory(folder);
    write_text_file(folder / "config.json", config.dump());
    write_text_file(folder / "tokenizer.json", tokenizer.dump());
    const std::string layer = "model.layers.0.";
    const std::vector<std::pair<std::string, std::vector<uint64_t>>> shapes = {
        {"model.embed_tokens.weight", {kTokens, kHidden}},
        {layer + "input_layernorm.weight", {kHidden}},
        {layer + "post_attention_layernorm.weight", {kHidden}},
        {layer + "self_attn.q_proj.weight", {kHidden, kHidden}},
        {layer + "self_attn.k_proj.weight", {kHidden / 2, kHidden}},
        {layer + "self_attn.v_proj.weight", {kHidden / 2, kHidden}},
        {layer + "self_attn.o_proj.weight", {kHidden, kHidden}},
        {layer + "mlp.gate_proj.weight", {kInner, kHidden}},
        {layer + "mlp.up_proj.weight", {kInner, kHidden}},
        {layer + "mlp.down_proj.weight", {kHidden, kInner}},
        {"model.norm.weight", {kHidden}}};
    std::mt19937 random(5);
    std::vector<std::vector<float>> values;
    std::vector<TensorToWrite> tensors;
    for (const auto& [tensor, shape] : shapes) {
      const uint64_t numel = shape[0] * (shape.size() > 1 ? shape[1] : 1);
      auto& of_tensor = values.emplace_back();
      for (uint64_t i = 0; i < numel; ++i)
        of_tensor.push_back(
            static_cast<float>(random() % 1000) / 1000.0F - 0.4F);
    }
    for (size_t i = 0; i < shapes.size(); ++i) {
      tensors.push_back(
          {shapes[i].first,
           SafetensorsDtype::kF32,
           shapes[i].second,
           std::as_bytes(std::span(values[i]))});
    }
    write_safetensors(folder / "model.safetensors", tensors);
  }

  int run(const std::vector<std::string>& arguments) const {
    fs::remove(folder_ / "out");
    fs::remove(folder_ / "err");
    return exit_code(start(arguments));
  }

  // The loss that `evaluate` reports of the text.
  double loss(const std::string& model, const std::string& text) const {
    EXPECT_EQ(
        run(
            {"evaluate",
             "--run",
             (folder_ / model).string(),
             "--text",
             (folder_ / text).string(),
             "--json"}),
        0)
        << err();
    const json result = json::parse(out(), nullptr, false);
    return result.is_object() ? result.begin()->at("loss").get<double>() : -1;
  }
};

TEST_F(ForeignFiles, ATokenizerMayHaveMoreTokensThanTheModelHasRows) {
  write_model("equal", config_of(kTokens), character_tokenizer({}));
  write_model("longer", config_of(kTokens), character_tokenizer({"<image>"}));
  write_text_file(folder_ / "t.txt", "the cat sat on the mat.");
  write_text_file(folder_ / "image.txt", "the <image> cat");
  EXPECT_EQ(loss("longer", "t.txt"), loss("equal", "t.txt"));
  std::string texts[2];
  for (const char* model : {"equal", "longer"}) {
    EXPECT_EQ(
        run(
            {"generate",
             "--run",
             (folder_ / model).string(),
             "--prompt",
             "the cat",
             "--max-tokens",
             "5",
             "-t",
             "0"}),
        0)
        << err();
    texts[model[0] == 'l'] = out();
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(
      run(
          {"evaluate",
           "--run",
           (folder_ / "longer").string(),
           "--text",
           (folder_ / "image.txt").string()}),
      4);
  EXPECT_THAT(err(), HasSubstr("the token \"<image>\" has id 31"));
}

// transformers ignores it too. Training's warning has a test of the config.
TEST_F(ForeignFiles, ARopeFactorWithoutATypeIsIgnoredWithAWarning) {
  json config = config_of(kTokens);
  write_model("plain", config, character_tokenizer({}));
  config["rope_scaling"] = {{"factor", 2.0}, {"rope_type", nullptr}};
  write_model("factor", config, character_tokenizer({}));
  write_text_file(folder_ / "t.txt", "the cat sat on the mat.");
  const double plain = loss("plain", "t.txt");
  EXPECT_THAT(err(), Not(HasSubstr("rope_type")));
  EXPECT_EQ(loss("factor", "t.txt"), plain);
  EXPECT_THAT(err(), HasSubstr("rope_scaling has a factor but no rope_type"));
  const std::string model = (folder_ / "factor").string();
  EXPECT_EQ(run({"generate", "--run", model, "-p", "a cat", "-n", "2"}), 0);
  EXPECT_THAT(err(), HasSubstr("rope_scaling has a factor but no rope_type"));
}

TEST_F(ForeignFiles, DropsByteOrderMarksAndRefusesInvalidUtf8) {
  write_model("m", config_of(kTokens), character_tokenizer({}));
  const std::string model = (folder_ / "m").string();
  const std::string text = "the cat sat.";
  write_text_file(folder_ / "t.txt", text);
  write_text_file(folder_ / "bom.txt", "\xEF\xBB\xBF" + text);
  write_text_file(folder_ / "bad.txt", "the c\xE9 sat.");
  EXPECT_EQ(loss("m", "bom.txt"), loss("m", "t.txt"));
  const std::string bad = (folder_ / "bad.txt").string();
  const std::string prefix = (folder_ / "d").string();
  const std::vector<std::vector<std::string>> commands = {
      {"evaluate", "--run", model, "--text", bad},
      {"generate", "--run", model, "--prompts", bad},
      {"prepare", "-i", bad, "-t", model, "-o", prefix}};
  for (const auto& command : commands) {
    EXPECT_EQ(run(command), 4) << command[0];
    EXPECT_THAT(err(), HasSubstr("bad.txt] at byte 5, line 1: byte 0xe9"))
        << command[0];
  }
}

TEST_F(ForeignFiles, APromptThatIsNoUtf8IsRefused) {
  write_model("m", config_of(kTokens), character_tokenizer({}));
  EXPECT_EQ(
      run(
          {"generate",
           "--run",
           (folder_ / "m").string(),
           "--prompt",
           "caf\xE9"}),
      2);
  EXPECT_THAT(err(), HasSubstr("--prompt: 0xe9 at byte 3 is not UTF-8"));
}

TEST_F(ForeignFiles, KeysThatAreNullMeanTheDefaultInEveryCommand) {
  json config = config_of(kTokens);
  config["architectures"] = nullptr;
  config["max_position_embeddings"] = nullptr;
  config["rope_scaling"] = nullptr;
  config["head_dim"] = nullptr;
  config["torch_dtype"] = nullptr;
  write_model("plain", config_of(kTokens), character_tokenizer({}));
  write_model("null", config, character_tokenizer({}));
  write_text_file(folder_ / "t.txt", "the cat sat on the mat.");
  EXPECT_EQ(loss("null", "t.txt"), loss("plain", "t.txt"));
  EXPECT_EQ(
      run(
          {"generate",
           "--run",
           (folder_ / "null").string(),
           "--prompt",
           "a",
           "--max-tokens",
           "2"}),
      0)
      << err();
  EXPECT_EQ(run({"inspect", (folder_ / "null").string()}), 0) << err();
}

}  // namespace
}  // namespace brigade
