#include "brigade/model_spec/model_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace brigade {
namespace {

using ::testing::ElementsAre;

DecoderConfig small_model(Architecture architecture) {
  DecoderConfig config;
  config.architecture = architecture;
  config.hidden_size = 16;
  config.intermediate_size = 20;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.rope_theta = 500;
  return config;
}

std::vector<std::string> norm_names(const LayerDescription& layer) {
  std::vector<std::string> names;
  for (const NormDescription& norm : layer.norms())
    names.push_back(norm.name);
  return names;
}

TEST(ModelDescription, LlamasLayersAreEqualAndNormBeforeTheirParts) {
  DecoderConfig config = small_model(Architecture::kMistral);
  config.sliding_window = 7;
  const ModelDescription model = describe_model(config);
  ASSERT_EQ(model.layers.size(), 2U);
  for (const LayerDescription& layer : model.layers) {
    EXPECT_THAT(
        norm_names(layer),
        ElementsAre("input_layernorm", "post_attention_layernorm"));
    EXPECT_EQ(layer.before_attention.scale, NormScale::kWeight);
    EXPECT_EQ(layer.attention.sliding_window, 7);
    EXPECT_EQ(layer.attention.scale, std::nullopt);
    EXPECT_EQ(layer.attention.rotary.theta, 500);
    EXPECT_EQ(layer.mlp.activation, Activation::kSilu);
    EXPECT_FALSE(layer.attention.q_norm.has_value());
  }
  EXPECT_EQ(model.embedding_scale, std::nullopt);
}

TEST(ModelDescription, GemmasLayersNormAfterTheirPartsTooAndDiffer) {
  DecoderConfig config = small_model(Architecture::kGemma3);
  config.sliding_window = 7;
  config.layer_types = {
      LayerType::kSlidingAttention, LayerType::kFullAttention};
  config.qk_norm = true;
  config.query_pre_attn_scalar = 25;
  config.rope_local_base_freq = 10;
  config.rope_scaling = {.type = RopeType::kLinear, .factor = 8};
  config.final_logit_softcapping = 30;
  const ModelDescription model = describe_model(config);
  EXPECT_EQ(model.embedding_scale, 4.0);
  EXPECT_EQ(model.final_logit_soft_cap, 30.0);
  EXPECT_EQ(model.final_norm.scale, NormScale::kOnePlusWeight);
  for (const LayerDescription& layer : model.layers) {
    EXPECT_THAT(
        norm_names(layer),
        ElementsAre(
            "input_layernorm",
            "post_attention_layernorm",
            "pre_feedforward_layernorm",
            "post_feedforward_layernorm"));
    for (const NormDescription& norm : layer.norms())
      EXPECT_EQ(norm.scale, NormScale::kOnePlusWeight) << norm.name;
    EXPECT_EQ(layer.attention.q_norm->scale, NormScale::kOnePlusWeight);
    EXPECT_EQ(layer.attention.scale, 0.2);
    EXPECT_EQ(layer.mlp.activation, Activation::kGeluTanh);
  }
  const RotaryDescription& sliding = model.layers[0].attention.rotary;
  EXPECT_EQ(model.layers[0].attention.sliding_window, 7);
  EXPECT_EQ(sliding.theta, 10);
  EXPECT_FALSE(sliding.scaling);
  const RotaryDescription& full = model.layers[1].attention.rotary;
  EXPECT_EQ(model.layers[1].attention.sliding_window, std::nullopt);
  EXPECT_EQ(full.theta, 500);
  ASSERT_TRUE(full.scaling);
  EXPECT_EQ(full.scaling->factor, 8.0);
}

}  // namespace
}  // namespace brigade
