#include "brigade/model_spec/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "brigade/model_spec/shard.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

DecoderConfig small_model() {
  DecoderConfig config;
  config.vocab_size = 13;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.qkv_bias = true;
  return config;
}

ModelDescription adapted(const std::vector<std::string>& targets) {
  ModelDescription model = describe_model(small_model());
  model.adapter = {.rank = 3, .targets = targets};
  return model;
}

std::vector<std::string> names_of_adapters(const ModelDescription& model) {
  std::vector<std::string> names;
  for (const ParameterRow& row : list_parameters(model)) {
    if (row.stored_in == StoredIn::kAdapter)
      names.push_back(row.name);
  }
  return names;
}

TEST(AdapterRows, FollowTheirUnitWithEveryAOfAGroupFirst) {
  EXPECT_THAT(
      names_of_adapters(adapted({"q_proj", "v_proj"})),
      ElementsAre(
          "model.layers.0.self_attn.q_proj.lora_A.weight",
          "model.layers.0.self_attn.v_proj.lora_A.weight",
          "model.layers.0.self_attn.q_proj.lora_B.weight",
          "model.layers.0.self_attn.v_proj.lora_B.weight",
          "model.layers.1.self_attn.q_proj.lora_A.weight",
          "model.layers.1.self_attn.v_proj.lora_A.weight",
          "model.layers.1.self_attn.q_proj.lora_B.weight",
          "model.layers.1.self_attn.v_proj.lora_B.weight"));
}

TEST(AdapterRows, MagnitudesAreCutAsTheirLinearsOutputs) {
  ModelDescription model = adapted({"1.self_attn.v_proj", "1.mlp.down_proj"});
  model.adapter.use_dora = true;
  EXPECT_EQ(names_of_adapters(model).size(), 6U);
  std::map<std::string, ParameterRow> rows;
  for (ParameterRow& row : list_parameters(model))
    rows[row.name] = row;
  const ParameterRow& value =
      rows.at("model.layers.1.self_attn.v_proj.lora_magnitude_vector");
  EXPECT_THAT(value.shape, ElementsAre(12));
  EXPECT_TRUE(value.trains);
  EXPECT_FALSE(value.decays);
  EXPECT_EQ(value.role, ParameterRole::kNorm);
  EXPECT_EQ(value.cut, rows.at("model.layers.1.self_attn.v_proj.weight").cut);
  EXPECT_EQ(adapted_module(value.name), "model.layers.1.self_attn.v_proj");
  // Whole, as its bias: of all tokens, or of each rank's.
  const ParameterRow& down =
      rows.at("model.layers.1.mlp.down_proj.lora_magnitude_vector");
  EXPECT_THAT(down.shape, ElementsAre(8));
  const auto gradient_ranks = [&](TokenLayout tokens) {
    return shard_parameter(down, {.tp = 2}, {.tp = 1}, tokens).gradient_ranks;
  };
  EXPECT_EQ(gradient_ranks(TokenLayout::kReplicated), 1);
  EXPECT_EQ(gradient_ranks(TokenLayout::kSharded), 2);
}

TEST(AdapterRows, NamesMatchFromADotOnOrAsAWhole) {
  EXPECT_EQ(names_of_adapters(adapted({"1.mlp.up_proj"})).size(), 2U);
  EXPECT_EQ(
      names_of_adapters(adapted({"model.layers.0.mlp.up_proj"})).size(), 2U);
  EXPECT_THAT(names_of_adapters(adapted({"proj"})), IsEmpty());
  EXPECT_EQ(names_of_adapters(adapted({"all-linear"})).size(), 2U * 2 * 7);
}

TEST(AdapterRows, LeaveTheModelsOwnAsTheyWereButFrozen) {
  const auto plain = list_parameters(describe_model(small_model()));
  size_t next = 0;
  for (ParameterRow row : list_parameters(adapted({"all-linear"}))) {
    if (row.stored_in == StoredIn::kAdapter) {
      EXPECT_TRUE(row.trains) << row.name;
      continue;
    }
    EXPECT_FALSE(row.trains) << row.name;
    EXPECT_EQ(row.stored_in, StoredIn::kBaseModel) << row.name;
    row.trains = true;
    row.stored_in = StoredIn::kModel;
    ASSERT_LT(next, plain.size());
    EXPECT_EQ(row, plain[next++]);
  }
  EXPECT_EQ(next, plain.size());
}

// rank, out, in, and which side is cut over tp 2.
TEST(AdapterRows, AreCutAsTheirLinear) {
  std::map<std::string, ParamShard> shards;
  for (const ParameterRow& row : list_parameters(adapted({"all-linear"})))
    shards[row.name] =
        shard_parameter(row, {.tp = 2}, {.tp = 1}, TokenLayout::kReplicated);
  const auto& q_a = shards["model.layers.0.self_attn.q_proj.lora_A.weight"];
  EXPECT_THAT(q_a.shape, ElementsAre(3, 8));
  EXPECT_EQ(q_a.replicas, 2);
  EXPECT_EQ(q_a.gradient_ranks, 2);
  const auto& q_b = shards["model.layers.0.self_attn.q_proj.lora_B.weight"];
  EXPECT_THAT(q_b.shape, ElementsAre(12, 3));
  EXPECT_EQ(q_b.slice, (Slice{.dim = 0, .begin = 12, .end = 24}));
  EXPECT_EQ(q_b.gradient_ranks, 1);
  const auto& down_a = shards["model.layers.0.mlp.down_proj.lora_A.weight"];
  EXPECT_THAT(down_a.shape, ElementsAre(3, 6));
  EXPECT_EQ(down_a.slice, (Slice{.dim = 1, .begin = 6, .end = 12}));
  const auto& down_b = shards["model.layers.0.mlp.down_proj.lora_B.weight"];
  EXPECT_THAT(down_b.shape, ElementsAre(8, 3));
  EXPECT_EQ(down_b.gradient_ranks, 2);
}

TEST(AdapterRows, AreOnSeveralRanksWhereKeyValueHeadsAreFew) {
  for (const ParameterRow& row : list_parameters(adapted({"k_proj"}))) {
    if (row.name != "model.layers.0.self_attn.k_proj.lora_B.weight")
      continue;
    const ParamShard shard =
        shard_parameter(row, {.tp = 4}, {.tp = 3}, TokenLayout::kReplicated);
    EXPECT_EQ(shard.slice, (Slice{.dim = 0, .begin = 6, .end = 12}));
    EXPECT_EQ(shard.gradient_ranks, 2);
  }
}

ModelDescription adapted_experts(const std::vector<std::string>& targets) {
  DecoderConfig config = small_model();
  config.architecture = Architecture::kQwen2Moe;
  config.experts = ExpertsConfig{
      .num_experts = 4,
      .num_experts_per_tok = 2,
      .width = 6,
      .shared_width = 10};
  ModelDescription model = describe_model(config);
  model.adapter = {.rank = 3, .targets = targets};
  return model;
}

TEST(AdapterRows, GoWithTheirExpertAndAreCutAsItIs) {
  const ModelDescription model =
      adapted_experts({"experts.2.gate_proj", "up_proj"});
  // Each layer has gate of one expert, up of four and of the shared one.
  EXPECT_EQ(names_of_adapters(model).size(), 2U * 2 * 6);
  ModelPart part = whole_model(small_model());
  part.experts = {2, 4};
  std::map<std::string, ParameterRow> held;
  for (const ParameterRow& row : list_parameters(model, part))
    held[row.name] = row;
  const std::string layer = "model.layers.1.mlp.";
  EXPECT_FALSE(held.contains(layer + "experts.1.up_proj.lora_A.weight"));
  EXPECT_TRUE(held.contains(layer + "shared_expert.up_proj.lora_A.weight"));
  const auto cut = [&](const std::string& name) {
    return shard_parameter(
        held.at(layer + name), {.tp = 2}, {.tp = 1}, TokenLayout::kSharded);
  };
  const ParamShard b = cut("experts.2.gate_proj.lora_B.weight");
  EXPECT_EQ(held.at(layer + "experts.2.gate_proj.lora_B.weight").expert, 2);
  EXPECT_EQ(b.slice, (Slice{.dim = 0, .begin = 3, .end = 6}));
  EXPECT_EQ(cut("experts.2.gate_proj.lora_A.weight").gradient_ranks, 2);
}

// They are whole on every rank; a rank's gradient is a part where tokens are
// divided.
TEST(AdapterRows, AreWholeForARouter) {
  const ModelDescription model =
      adapted_experts({"mlp.gate", "shared_expert_gate"});
  EXPECT_EQ(names_of_adapters(model).size(), 2U * 2 * 2);
  for (const ParameterRow& row : list_parameters(model)) {
    if (row.stored_in != StoredIn::kAdapter)
      continue;
    const auto gradient_ranks = [&](TokenLayout tokens) {
      return shard_parameter(row, {.tp = 2}, {.tp = 1}, tokens).gradient_ranks;
    };
    EXPECT_EQ(gradient_ranks(TokenLayout::kReplicated), 1) << row.name;
    EXPECT_EQ(gradient_ranks(TokenLayout::kSharded), 2) << row.name;
  }
}

TEST(AdapterRows, NoRouterAndNoExpertHasMagnitudes) {
  const auto first = [](const std::vector<std::string>& targets) {
    const ModelDescription model = adapted_experts(targets);
    return linear_without_magnitude(model, model.adapter);
  };
  EXPECT_EQ(first({"q_proj", "shared_expert.up_proj"}), "");
  EXPECT_EQ(first({"gate"}), "model.layers.0.mlp.gate");
  EXPECT_EQ(
      first({"1.mlp.experts.3.down_proj"}),
      "model.layers.1.mlp.experts.3.down_proj");
}

TEST(AdapterTargets, OneThatMatchesNothingIsNamedWithTheNearest) {
  std::vector<std::string> problems;
  check_targets(
      describe_model(small_model()),
      {.rank = 2, .targets = {"q_proj", "v_prj", "lm_head"}},
      problems);
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_THAT(problems[0], HasSubstr("\"v_prj\""));
  EXPECT_THAT(problems[0], HasSubstr("nearest is \"v_proj\""));
  EXPECT_THAT(problems[1], HasSubstr("\"lm_head\""));
}

TEST(AdapterOptions, RankStabilisedDividesByTheRoot) {
  EXPECT_EQ((AdapterOptions{.rank = 16, .alpha = 8}.scale()), 0.5);
  EXPECT_EQ(
      (AdapterOptions{.rank = 16, .alpha = 8, .use_rslora = true}.scale()), 2);
}

TEST(AdaptedModule, IsTheNameBeforeAOrB) {
  EXPECT_EQ(adapted_module("a.q_proj.lora_A.weight"), "a.q_proj");
  EXPECT_EQ(adapted_module("a.q_proj.lora_B.weight"), "a.q_proj");
  EXPECT_EQ(adapted_module("a.q_proj.weight"), "");
}

}  // namespace
}  // namespace brigade
