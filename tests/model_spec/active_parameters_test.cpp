#include "brigade/model_spec/active_parameters.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "brigade/model_spec/parameter_table.h"
#include "tests/support/parsed_config.h"

namespace brigade {
namespace {

using nlohmann::json;

double millions(int64_t count) {
  return static_cast<double>(count) / 1e6;
}

// The figures are transformers', of its models on the meta device.
TEST(ActiveParameters, AreThoseOfThePublishedModels) {
  const DecoderConfig mixtral = parsed_config(
      {{"model_type", "mixtral"},
       {"vocab_size", 32000},
       {"hidden_size", 4096},
       {"intermediate_size", 14336},
       {"num_hidden_layers", 32},
       {"num_attention_heads", 32},
       {"num_key_value_heads", 8},
       {"num_local_experts", 8},
       {"num_experts_per_tok", 2}});
  EXPECT_NEAR(millions(parameter_count(mixtral)), 46702.8, 0.05);
  EXPECT_NEAR(millions(active_parameter_count(mixtral)), 12879.9, 0.05);

  const DecoderConfig qwen3 = parsed_config(
      {{"model_type", "qwen3_moe"},
       {"vocab_size", 151936},
       {"hidden_size", 2048},
       {"intermediate_size", 6144},
       {"moe_intermediate_size", 768},
       {"num_hidden_layers", 48},
       {"num_attention_heads", 32},
       {"num_key_value_heads", 4},
       {"head_dim", 128},
       {"num_experts", 128},
       {"num_experts_per_tok", 8}});
  EXPECT_NEAR(millions(parameter_count(qwen3)), 30532.1, 0.05);
  EXPECT_NEAR(millions(active_parameter_count(qwen3)), 3353.0, 0.05);

  const DecoderConfig qwen2 = parsed_config(
      {{"model_type", "qwen2_moe"},
       {"vocab_size", 151936},
       {"hidden_size", 2048},
       {"intermediate_size", 5632},
       {"moe_intermediate_size", 1408},
       {"shared_expert_intermediate_size", 5632},
       {"num_hidden_layers", 24},
       {"num_attention_heads", 16},
       {"num_key_value_heads", 16},
       {"num_experts", 60},
       {"num_experts_per_tok", 4}});
  EXPECT_NEAR(millions(parameter_count(qwen2)), 14315.8, 0.05);
  EXPECT_NEAR(millions(active_parameter_count(qwen2)), 2689.2, 0.05);
}

}  // namespace
}  // namespace brigade
