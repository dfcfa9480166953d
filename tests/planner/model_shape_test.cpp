#include "brigade/planner/model_shape.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "brigade/model_spec/active_parameters.h"
#include "brigade/model_spec/parameter_table.h"
#include "support.h"
#include "tests/support/parsed_config.h"

namespace brigade::planner {
namespace {

nlohmann::json small(const char* architecture) {
  return {
      {"architectures", {architecture}},
      {"vocab_size", 259},
      {"hidden_size", 64},
      {"intermediate_size", 176},
      {"num_hidden_layers", 3},
      {"num_attention_heads", 8},
      {"num_key_value_heads", 4},
      {"head_dim", 8},
      {"max_position_embeddings", 128}};
}

TEST(ModelShape, CountsParametersAsTheModelItself) {
  for (const char* architecture :
       {"LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen2ForCausalLM",
        "Qwen3ForCausalLM",
        "Gemma2ForCausalLM",
        "Gemma3ForCausalLM"}) {
    for (bool tied : {false, true}) {
      nlohmann::json json = small(architecture);
      json["tie_word_embeddings"] = tied;
      const DecoderConfig config = parsed_config(json);
      EXPECT_EQ(
          total_parameters(shape_of(config, architecture)),
          parameter_count(config))
          << architecture << " tied " << tied;
    }
  }
}

// Mixtral's layers all have experts; of Qwen's layers 0 and 2 do, of those of
// dots1 and GLM all but the first. Shared ones where there are any.
TEST(ModelShape, CountsExpertsAsTheModelItself) {
  for (const char* architecture :
       {"MixtralForCausalLM",
        "Qwen2MoeForCausalLM",
        "Qwen3MoeForCausalLM",
        "OlmoeForCausalLM",
        "Dots1ForCausalLM",
        "Glm4MoeForCausalLM"}) {
    nlohmann::json json = small(architecture);
    const bool is_deepseek = std::string(architecture).starts_with("Dots1") ||
                             std::string(architecture).starts_with("Glm4");
    json[is_deepseek ? "n_routed_experts" : "num_experts"] = 6;
    if (is_deepseek) {
      json["moe_intermediate_size"] = 24;
      json["n_shared_experts"] = 1;
      json["first_k_dense_replace"] = 1;
    }
    json["num_experts_per_tok"] = 2;
    if (std::string(architecture).starts_with("Qwen")) {
      json["moe_intermediate_size"] = 24;
      json["mlp_only_layers"] = {1};
    }
    if (std::string(architecture).starts_with("Qwen2"))
      json["shared_expert_intermediate_size"] = 40;
    const DecoderConfig config = parsed_config(json);
    const ModelShape shape = shape_of(config, architecture);
    EXPECT_EQ(total_parameters(shape), parameter_count(config)) << architecture;
    EXPECT_EQ(active_parameters(shape), active_parameter_count(config))
        << architecture;
  }
}

// As transformers has it.
TEST(ModelShape, CountsQwen3WithExpertsAsPublished) {
  const ModelShape shape = qwen3_30b_a3b();
  EXPECT_EQ(total_parameters(shape), 30'532'122'624);
  EXPECT_NEAR(static_cast<double>(active_parameters(shape)), 3353.0e6, 0.1e6);
  EXPECT_EQ(48 * expert_parameters(shape), 28'991'029'248);
}

// google/gemma-2-2b slides over 4096 tokens in every second layer, Mistral 7B
// v0.1 in all of them.
TEST(ModelShape, KnowsTheWindowOfEachLayer) {
  nlohmann::json json = small("Gemma2ForCausalLM");
  json["sliding_window"] = 4096;
  EXPECT_EQ(
      shape_of(parsed_config(json), "").windows,
      (std::vector<int64_t>{4096, 0, 4096}));
  EXPECT_EQ(shape_of(parsed_config(json), "").norms, 4);
  json = small("MistralForCausalLM");
  json["sliding_window"] = 16;
  EXPECT_EQ(
      shape_of(parsed_config(json), "").windows,
      (std::vector<int64_t>{16, 16, 16}));
  EXPECT_EQ(shape_of(parsed_config(json), "").norms, 2);
}

TEST(ModelShape, CountsLlama3AsPublished) {
  EXPECT_EQ(total_parameters(llama_8b()), 8'030'261'248);
}

TEST(ModelShape, CountsFlopsOfATokenAsPaLMDoes) {
  ModelShape shape = llama_8b();
  const double weights = static_cast<double>(
      total_parameters(shape) - embedding_parameters(shape));
  EXPECT_DOUBLE_EQ(
      model_flops_per_token(shape, 8192),
      6 * weights + 12.0 * 32 * 4096 * 8192);
}

TEST(ModelShape, CountsFlopsOfATokenByTheExpertsThatItVisits) {
  const ModelShape shape = qwen3_30b_a3b();
  const double weights = static_cast<double>(
      active_parameters(shape) - embedding_parameters(shape));
  EXPECT_DOUBLE_EQ(
      model_flops_per_token(shape, 4096),
      6 * weights + 12.0 * 48 * 4096 * 4096);
}

}  // namespace
}  // namespace brigade::planner
