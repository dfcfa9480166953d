#include "brigade/model_spec/optimizer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "brigade/model_spec/decoder_config.h"
#include "tests/support/parsed_config.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;

std::vector<ParameterRow> qwen2_rows() {
  const DecoderConfig config = parsed_config(
      {{"architectures", {"Qwen2ForCausalLM"}},
       {"model_type", "qwen2"},
       {"vocab_size", 100},
       {"hidden_size", 16},
       {"intermediate_size", 24},
       {"num_hidden_layers", 1},
       {"num_attention_heads", 2},
       {"num_key_value_heads", 1},
       {"max_position_embeddings", 64},
       {"tie_word_embeddings", false}});
  return list_parameters(config);
}

TEST(OptimizerMemory, MuonStepsTheMatricesOfLayersAlone) {
  std::vector<std::string> matrices;
  for (const ParameterRow& row : qwen2_rows()) {
    if (step_unit(row, {.kind = OptimizerKind::kMuon}) == StepUnit::kMatrices)
      matrices.push_back(row.name.substr(row.name.find("0.") + 2));
    EXPECT_EQ(step_unit(row, {}), StepUnit::kElements);
  }
  EXPECT_THAT(
      matrices,
      ElementsAre(
          "self_attn.q_proj.weight",
          "self_attn.k_proj.weight",
          "self_attn.v_proj.weight",
          "self_attn.o_proj.weight",
          "mlp.gate_proj.weight",
          "mlp.up_proj.weight",
          "mlp.down_proj.weight"));
}

TEST(OptimizerMemory, CountsWhatEachOptimizerKeeps) {
  struct Expected {
    OptimizerOptions options;
    int64_t matrix;
    int64_t rest;
  };
  const std::vector<Expected> all = {
      {{}, 8, 8},
      {{.kind = OptimizerKind::kMuon}, 4, 8},
      {{.kind = OptimizerKind::kSgd}, 0, 0},
      {{.kind = OptimizerKind::kSgd, .sgd = {.momentum = 0.9}}, 4, 4},
      {{.kind = OptimizerKind::kScheduleFreeAdamW}, 8, 8},
      {{.kind = OptimizerKind::kMuon, .ema_decay = 0.9}, 8, 12},
      {{.moments = MomentDtype::kBfloat16}, 4, 4},
      {{.ema_decay = 0.9, .moments = MomentDtype::kBfloat16}, 8, 8}};
  for (const Expected& each : all) {
    for (const ParameterRow& row : qwen2_rows()) {
      const int64_t expected =
          row.role == ParameterRole::kMatrix ? each.matrix : each.rest;
      EXPECT_EQ(
          state_bytes(row, 3, each.options, WeightWidth::k32Bit), 3 * expected)
          << row.name << " " << to_string(each.options.kind);
      EXPECT_EQ(
          state_bytes(row, 3, each.options, WeightWidth::k16Bit),
          3 * (expected + 2));
    }
  }
}

TEST(OptimizerMemory, Int8MomentsTakeLessThanTwoPointOneBytesPerParameter) {
  const ParameterRow row = qwen2_rows().front();
  const OptimizerOptions adamw{.moments = MomentDtype::kInt8};
  EXPECT_EQ(
      state_bytes(row, 1 << 20, adamw, WeightWidth::k32Bit),
      (1 << 20) * 2 + (1 << 20) / 256 * 8);
  EXPECT_EQ(
      state_bytes(row, 1 << 20, adamw, WeightWidth::k16Bit),
      (1 << 20) * 4 + (1 << 20) / 256 * 8);
}

}  // namespace
}  // namespace brigade
