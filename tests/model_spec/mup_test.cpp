// mup's rules by class, against the table of Yang et al. 2022 (arXiv
// 2203.03466), and that nothing changes at the base width.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "brigade/model_spec/experts_config.h"
#include "brigade/model_spec/parameter_table.h"

namespace brigade {
namespace {

constexpr double kStd = 0.02;

// Four times as wide as the base's 16, heads twice as wide as the base's 8.
ModelDescription wide_model(bool is_tied, bool has_head_norms) {
  DecoderConfig config;
  config.vocab_size = 13;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.initializer_range = kStd;
  config.tie_word_embeddings = is_tied;
  config.qkv_bias = true;
  config.qk_norm = has_head_norms;
  ModelDescription model = describe_model(config);
  model.mup = {Parametrization::kMup, 16, 8};
  return model;
}

ParameterRow mup_row_of(
    const ModelDescription& model,
    const std::string& name) {
  for (ParameterRow& row : list_parameters(model)) {
    if (row.name.find(name) != std::string::npos)
      return row;
  }
  ADD_FAILURE() << name << " is not in the table";
  return {};
}

// What a step of Adam's rate 1 changes an element by.
double adam_rate(const ParameterRow& row) {
  return row.mup.values / row.mup.width;
}

TEST(Mup, MatricesBeginSmallerByTheRootAndStepSmallerByTheWidth) {
  const ModelDescription model = wide_model(false, false);
  for (const char* name :
       {"k_proj.weight", "v_proj.weight", "o_proj", "gate", "up", "down"}) {
    const ParameterRow row = mup_row_of(model, name);
    EXPECT_DOUBLE_EQ(row.initial_std, kStd / 2) << name;
    EXPECT_DOUBLE_EQ(adam_rate(row), 1.0 / 4) << name;
  }
}

TEST(Mup, EmbeddingNormsAndBiasesStayAsTheyAre) {
  const ModelDescription model = wide_model(false, false);
  for (const char* name :
       {"embed_tokens", "input_layernorm", "model.norm", "k_proj.bias"}) {
    const ParameterRow row = mup_row_of(model, name);
    EXPECT_EQ(row.mup, MupFactors{}) << name;
    EXPECT_EQ(row.initial_std, row.shape.size() == 2 ? kStd : 0) << name;
  }
}

TEST(Mup, LogitsAreDividedByTheWidthInTheHeadOrBeforeATiedOne) {
  const ParameterRow head = mup_row_of(wide_model(false, false), "lm_head");
  EXPECT_DOUBLE_EQ(head.initial_std, kStd / 4);
  EXPECT_DOUBLE_EQ(adam_rate(head), 1.0 / 4);

  const ModelDescription tied = wide_model(true, false);
  EXPECT_EQ(mup_row_of(tied, "embed_tokens").initial_std, kStd);
  const ParameterRow norm = mup_row_of(tied, "model.norm");
  EXPECT_EQ(norm.initialization, Initialization::kConstant);
  EXPECT_DOUBLE_EQ(norm.initial_value, 1.0 / 4);
  EXPECT_DOUBLE_EQ(adam_rate(norm), 1.0 / 4);
}

// 1 / sqrt(16) in attention, and sqrt(8 / 16) here: sqrt(8) / 16.
TEST(Mup, ScoresFallWithTheWidthOfAHeadByQOrItsNorm) {
  const double factor = std::sqrt(8.0 / 16);
  const ModelDescription plain = wide_model(false, false);
  const ParameterRow q = mup_row_of(plain, "q_proj.weight");
  EXPECT_DOUBLE_EQ(q.initial_std, kStd / 2 * factor);
  EXPECT_DOUBLE_EQ(adam_rate(q), factor / 4);
  EXPECT_DOUBLE_EQ(adam_rate(mup_row_of(plain, "q_proj.bias")), factor);

  const ModelDescription normed = wide_model(false, true);
  EXPECT_DOUBLE_EQ(mup_row_of(normed, "q_proj").initial_std, kStd / 2);
  const ParameterRow norm = mup_row_of(normed, "q_norm");
  EXPECT_DOUBLE_EQ(norm.initial_value, factor);
  EXPECT_DOUBLE_EQ(adam_rate(norm), factor);
  EXPECT_EQ(mup_row_of(normed, "k_norm").mup, MupFactors{});
}

TEST(Mup, ARouterIsSteppedAsAHeadAndAnExpertAsAMatrix) {
  DecoderConfig config;
  config.architecture = Architecture::kQwen3Moe;
  config.vocab_size = 13;
  config.hidden_size = 64;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.initializer_range = kStd;
  config.experts = ExpertsConfig{};
  config.experts->num_experts = 4;
  config.experts->num_experts_per_tok = 2;
  config.experts->width = 24;
  ModelDescription model = describe_model(config);
  model.mup = {Parametrization::kMup, 16};
  const ParameterRow router = mup_row_of(model, "mlp.gate.weight");
  EXPECT_DOUBLE_EQ(router.initial_std, kStd / 4);
  EXPECT_DOUBLE_EQ(adam_rate(router), 1.0 / 4);
  const ParameterRow expert = mup_row_of(model, "experts.1.down_proj");
  EXPECT_DOUBLE_EQ(expert.initial_std, kStd / 2);
  EXPECT_DOUBLE_EQ(adam_rate(expert), 1.0 / 4);
}

TEST(Mup, EveryRowIsTheStandardOneAtTheBaseWidth) {
  for (const bool is_tied : {false, true}) {
    for (const bool has_head_norms : {false, true}) {
      ModelDescription model = wide_model(is_tied, has_head_norms);
      model.mup = {};
      const auto standard = list_parameters(model);
      model.mup = {Parametrization::kMup, 64, 16};
      EXPECT_EQ(list_parameters(model), standard);
      model.mup.base_head_dim = 0;  // the model's own
      EXPECT_EQ(list_parameters(model), standard);
    }
  }
}

}  // namespace
}  // namespace brigade
