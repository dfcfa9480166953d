// The model against implementations that share nothing with it: plain PyTorch
// (reference_decoder.py) and Hugging Face's transformers
// (transformers_model.py). BRIGADE_TRANSFORMERS_PYTHON names an interpreter
// that has transformers, such as a virtual environment's; without it the second
// kind of test is skipped.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/types.h>

#include <map>
#include <nlohmann/json.hpp>

#include "brigade/checkpoint/hugging_face.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "brigade/files/file.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model_spec/parameter_table.h"
#include "tests/support/parsed_config.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_tensors.h"

namespace brigade {
namespace {

using nlohmann::json;

// Another implementation: a script, and an interpreter that can run it.
struct Oracle {
  std::string python;
  std::string script;
  std::string needs;  // what the interpreter may lack
};

Oracle plain_pytorch() {
  return {
      "/usr/bin/python3",
      "reference_decoder.py",
      "torch (Debian: python3-torch)"};
}

Oracle transformers() {
  const char* python = ::getenv("BRIGADE_TRANSFORMERS_PYTHON");
  return {
      python != nullptr ? python : "/usr/bin/python3",
      "transformers_model.py",
      "transformers (name one that has in BRIGADE_TRANSFORMERS_PYTHON)"};
}

struct Case {
  const char* name;
  json changes;  // to the small Llama below
};

json small_decoder() {
  return {
      {"model_type", "llama"},
      {"vocab_size", 50},
      {"hidden_size", 32},
      {"intermediate_size", 44},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 8},
      {"rms_norm_eps", 1e-5},
      {"rope_theta", 10000.0},
      {"tie_word_embeddings", false}};
}

const Case kCases[] = {
    {"Llama", json::object()},
    {"LlamaTiedWithBiasesAndLlama3Rope",
     {{"tie_word_embeddings", true},
      {"attention_bias", true},
      {"mlp_bias", true},
      {"head_dim", 16},
      {"rope_theta", 500.0},
      // 64 positions: dims on both sides of the two bounds and between them.
      {"rope_scaling",
       {{"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 64}}}}},
    {"LlamaWithLinearRope",
     {{"rope_theta", 500.0},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}}}}},
    // The tests' sequences are longer.
    {"LlamaWithDynamicRope",
     {{"rope_theta", 500.0},
      {"max_position_embeddings", 8},
      {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}},
    {"LlamaWithYarn",
     {{"rope_theta", 500.0},
      {"head_dim", 16},
      {"rope_scaling",
       {{"rope_type", "yarn"},
        {"factor", 4.0},
        {"original_max_position_embeddings", 128}}}}},
    {"Qwen3WithYarnAndItsKeys",
     {{"model_type", "qwen3"},
      {"rope_theta", 500.0},
      {"head_dim", 16},
      {"rope_scaling",
       {{"rope_type", "yarn"},
        {"factor", 4.0},
        {"beta_fast", 16.0},
        {"beta_slow", 2.0},
        {"truncate", false},
        {"attention_factor", 0.75},
        {"original_max_position_embeddings", 128}}}}},
    {"LlamaWithoutGroupedHeads", {{"num_key_value_heads", 4}}},
    {"LlamaWithOneKeyValueHead", {{"num_key_value_heads", 1}}},
    {"Mixtral",
     {{"model_type", "mixtral"},
      {"num_local_experts", 4},
      {"num_experts_per_tok", 2}}},
    {"Qwen3MoeWithADenseLayer",
     {{"model_type", "qwen3_moe"},
      {"num_experts", 5},
      {"num_experts_per_tok", 3},
      {"moe_intermediate_size", 12},
      {"norm_topk_prob", true},
      {"mlp_only_layers", {1}}}},
    {"Qwen2MoeWithItsSharedExpert",
     {{"model_type", "qwen2_moe"},
      {"num_experts", 4},
      {"num_experts_per_tok", 2},
      {"moe_intermediate_size", 12},
      {"shared_expert_intermediate_size", 20},
      {"decoder_sparse_step", 2}}},
    {"Olmoe",
     {{"model_type", "olmoe"}, {"num_experts", 4}, {"num_experts_per_tok", 2}}},
    {"Dots1WithGroupsOfExperts",
     {{"model_type", "dots1"},
      {"n_routed_experts", 6},
      {"n_shared_experts", 2},
      {"num_experts_per_tok", 2},
      {"n_group", 2},
      {"topk_group", 1},
      {"norm_topk_prob", true},
      {"routed_scaling_factor", 1.7},
      {"moe_intermediate_size", 12},
      {"first_k_dense_replace", 1}}},
    {"Glm4Moe",
     {{"model_type", "glm4_moe"},
      {"head_dim", 12},
      {"partial_rotary_factor", 0.5},
      {"attention_bias", true},
      {"use_qk_norm", true},
      {"n_routed_experts", 4},
      {"n_shared_experts", 1},
      {"num_experts_per_tok", 2},
      {"norm_topk_prob", false},
      {"routed_scaling_factor", 2.5},
      {"moe_intermediate_size", 12}}},
    {"MistralWithAWindow", {{"model_type", "mistral"}, {"sliding_window", 5}}},
    {"Qwen2", {{"model_type", "qwen2"}, {"tie_word_embeddings", true}}},
    {"Qwen2WithAWindow",
     {{"model_type", "qwen2"},
      {"use_sliding_window", true},
      {"sliding_window", 3},
      {"max_window_layers", 0}}},
    {"Qwen3", {{"model_type", "qwen3"}, {"head_dim", 12}}},
    // Caps low enough to bend the scores and logits of this small model.
    {"Gemma2",
     {{"model_type", "gemma2"},
      {"num_hidden_layers", 4},
      {"head_dim", 12},
      {"query_pre_attn_scalar", 20},
      {"sliding_window", 5},
      {"attn_logit_softcapping", 3.0},
      {"final_logit_softcapping", 4.0},
      {"tie_word_embeddings", true}}},
    {"Gemma2WithoutCapsUntiedWithLayerTypes",
     {{"model_type", "gemma2"},
      {"query_pre_attn_scalar", 8},
      {"sliding_window", 4},
      {"attn_logit_softcapping", nullptr},
      {"final_logit_softcapping", nullptr},
      {"attention_bias", true},
      {"layer_types",
       {"full_attention", "sliding_attention", "sliding_attention"}}}},
    {"Gemma3",
     {{"model_type", "gemma3_text"},
      {"num_hidden_layers", 4},
      {"head_dim", 10},
      {"query_pre_attn_scalar", 16},
      {"sliding_window", 3},
      {"sliding_window_pattern", 3},
      {"rope_theta", 50000.0},
      {"rope_local_base_freq", 100.0},
      {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
      {"tie_word_embeddings", true}}},
};

using Tensors = std::map<std::string, torch::Tensor>;

double largest_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.to(torch::kDouble) - b.to(torch::kDouble))
      .abs()
      .max()
      .item<double>();
}

class DecoderReference : public ::testing::TestWithParam<Case> {
 protected:
  // A model that another program saved, as far as Brigade knows.
  void write_model(const json& config) {
    config_ = parsed_config(config);
    write_text_file(folder_ / "config.json", config.dump());
    Tensors weights;
    for (const ParameterRow& param : list_parameters(config_)) {
      const bool is_one = param.initialization == Initialization::kOnes;
      // Near the differences of scores, so that it decides some choices.
      const bool is_bias = param.role == ParameterRole::kRouterBias;
      weights[param.name] = torch::randn(param.shape) * (is_bias ? 0.1 : 0.3) +
                            (is_one ? 1.0 : 0.0);
    }
    write_tensors(folder_ / kSafetensorsFile, weights);
  }

  // False where the interpreter lacks what the script needs.
  bool run(const Oracle& oracle) const {
    constexpr int kNotInstalled = 3;
    const int status = std::system(fmt::format(
                                       "OMP_NUM_THREADS=1 {} "
                                       "{}/tests/model/{} {} {}",
                                       oracle.python,
                                       BRIGADE_SOURCE_DIR,
                                       oracle.script,
                                       folder_.path().string(),
                                       (folder_ / "out.safetensors").string())
                                       .c_str());
    if (WEXITSTATUS(status) == kNotInstalled)
      return false;
    EXPECT_EQ(status, 0);
    return true;
  }

  DecoderModel load() const {
    DecoderModel model(
        std::make_shared<const ModelContext>(single_rank_context(config_)),
        whole_model(config_));
    const std::vector<ParameterRow> expected = list_parameters(config_);
    std::vector<State> parts;
    for (const auto& item : model.named_parameters())
      parts.push_back({.name = item.key(), .tensor = item.value()});
    EXPECT_EQ(parts.size(), expected.size());
    load_weights(SafetensorsFolder(folder_), expected, parts);
    return model;
  }

  void compare_with(const Oracle& oracle);

  const TemporaryFolder folder_;
  DecoderConfig config_;
};

void DecoderReference::compare_with(const Oracle& oracle) {
  torch::manual_seed(11);
  json config = small_decoder();
  config.update(GetParam().changes);
  write_model(config);
  constexpr int64_t kTokens = 12;
  const torch::Tensor ids =
      torch::randint(config_.vocab_size, {2, kTokens}, torch::kLong);
  torch::Tensor targets =
      torch::randint(config_.vocab_size, {2, kTokens}, torch::kLong);
  targets[1].slice(0, 8).fill_(-100);
  write_tensors(
      folder_ / "inputs.safetensors", {{"ids", ids}, {"targets", targets}});
  if (!run(oracle))
    GTEST_SKIP() << oracle.python << " has no " << oracle.needs;
  const SafetensorsFile reference(folder_ / "out.safetensors");

  DecoderModel model = load();
  const torch::Tensor logits = as_tensor(reference.at("logits"));
  EXPECT_LT(
      largest_difference(model.logits(ids), logits),
      1e-5 * logits.abs().max().item<double>());

  const torch::Tensor loss = model.forward(
      {.ids = ids, .targets = targets, .document_starts = {}},
      {},
      torch::arange(kTokens, torch::kLong));
  const double expected_loss = as_tensor(reference.at("loss")).item<double>();
  EXPECT_NEAR(loss.item<double>(), expected_loss, 1e-5 * expected_loss);

  loss.backward();
  for (const auto& item : model.named_parameters()) {
    if (!item.value().requires_grad())  // a router's bias
      continue;
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    const SafetensorsTensor* stored = reference.find("grad." + item.key());
    const torch::Tensor expected =
        stored == nullptr ? torch::zeros({1}) : as_tensor(*stored);
    const double scale = expected.abs().max().item<double>();
    // One that no token visits.
    const bool is_expert = item.key().find(".experts.") != std::string::npos;
    if (is_expert && scale == 0) {
      EXPECT_EQ(item.value().grad().abs().max().item<double>(), 0);
      continue;
    }
    EXPECT_GT(scale, 0.0) << item.key();
    EXPECT_LT(largest_difference(item.value().grad(), expected), 1e-4 * scale)
        << item.key();
  }
}

TEST_P(DecoderReference, LogitsLossAndGradientsAreThoseOfPlainPyTorch) {
  compare_with(plain_pytorch());
}

TEST_P(DecoderReference, LogitsLossAndGradientsAreThoseOfTransformers) {
  compare_with(transformers());
}

INSTANTIATE_TEST_SUITE_P(
    Architectures,
    DecoderReference,
    ::testing::ValuesIn(kCases),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace brigade
