#include "brigade/model_spec/parameter_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Tied or not, with every optional parameter of the family.
DecoderConfig table_model() {
  DecoderConfig config;
  config.vocab_size = 13;
  config.hidden_size = 8;
  config.intermediate_size = 10;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 6;
  config.initializer_range = 0.3;
  return config;
}

DecoderConfig with_every_option() {
  DecoderConfig config = table_model();
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  return config;
}

template <typename Wanted>
std::vector<std::string> names_of(
    const std::vector<ParameterRow>& rows,
    const Wanted& wanted) {
  std::vector<std::string> names;
  for (const ParameterRow& row : rows) {
    if (wanted(row))
      names.push_back(row.name);
  }
  return names;
}

ParameterRow table_row_of(
    const DecoderConfig& config,
    const std::string& name) {
  for (ParameterRow& row : list_parameters(config)) {
    if (row.name == name)
      return row;
  }
  ADD_FAILURE() << name << " is not in the table";
  return {};
}

TEST(ParameterTable, NamesAreHuggingFacesInRegistrationOrder) {
  DecoderConfig config = table_model();
  config.num_hidden_layers = 1;
  config.qk_norm = true;
  EXPECT_THAT(
      names_of(list_parameters(config), [](const auto&) { return true; }),
      ElementsAre(
          "model.embed_tokens.weight",
          "model.layers.0.self_attn.q_proj.weight",
          "model.layers.0.self_attn.k_proj.weight",
          "model.layers.0.self_attn.v_proj.weight",
          "model.layers.0.self_attn.o_proj.weight",
          "model.layers.0.self_attn.q_norm.weight",
          "model.layers.0.self_attn.k_norm.weight",
          "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight",
          "model.layers.0.mlp.down_proj.weight",
          "model.layers.0.input_layernorm.weight",
          "model.layers.0.post_attention_layernorm.weight",
          "model.norm.weight",
          "lm_head.weight"));
}

TEST(ParameterTable, MatricesDecayNormsAndBiasesDoNot) {
  for (const ParameterRow& row : list_parameters(with_every_option()))
    EXPECT_EQ(row.decays, row.shape.size() == 2) << row.name;
}

TEST(ParameterTable, MatricesAreDrawnNormsAreOnesBiasesZeros) {
  for (const ParameterRow& row : list_parameters(with_every_option())) {
    Initialization expected = Initialization::kNormal;
    if (row.name.ends_with(".bias"))
      expected = Initialization::kZeros;
    else if (row.name.find("norm") != std::string::npos)
      expected = Initialization::kOnes;
    EXPECT_EQ(row.initialization, expected) << row.name;
    EXPECT_EQ(row.initial_std, row.shape.size() == 2 ? 0.3 : 0.0) << row.name;
  }
}

// What stands together in the table lies together in flat memory, so that a
// group is one product.
TEST(ParameterTable, GroupsFollowEachOtherAndShareTheirInput) {
  const std::vector<ParameterRow> rows = list_parameters(table_model());
  std::map<std::string, std::vector<size_t>> groups;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].group.empty())
      groups[rows[i].group].push_back(i);
  }
  ASSERT_EQ(groups.size(), 4U);
  for (const auto& [name, members] : groups) {
    EXPECT_EQ(members.back() - members.front() + 1, members.size()) << name;
    for (const size_t member : members)
      EXPECT_EQ(rows[member].shape[1], rows[members[0]].shape[1]) << name;
  }
  EXPECT_EQ(groups.at("model.layers.1.self_attn.qkv_proj.weight").size(), 3U);
  EXPECT_EQ(groups.at("model.layers.0.mlp.gate_up_proj.weight").size(), 2U);
}

TEST(ParameterTable, BiasesAreAGroupOfTheirOwn) {
  const DecoderConfig config = with_every_option();
  EXPECT_EQ(
      table_row_of(config, "model.layers.0.self_attn.v_proj.bias").group,
      "model.layers.0.self_attn.qkv_proj.bias");
  EXPECT_EQ(
      table_row_of(config, "model.layers.0.self_attn.o_proj.bias").group, "");
}

TEST(ParameterTable, EachPartHoldsItsLayersAndTheEndsTheirs) {
  const ModelDescription model = describe_model(table_model());
  const ModelPart first{{0, 1}, true, false};
  const ModelPart last{{1, 2}, false, true};
  const auto outside_layers = [](const ParameterRow& row) {
    return row.place != Place::kLayer;
  };
  EXPECT_THAT(
      names_of(list_parameters(model, first), outside_layers),
      ElementsAre("model.embed_tokens.weight"));
  EXPECT_THAT(
      names_of(list_parameters(model, last), outside_layers),
      ElementsAre("model.norm.weight", "lm_head.weight"));
  const ModelPart middle{{1, 2}, false, false};
  const auto rows = list_parameters(model, middle);
  EXPECT_THAT(names_of(rows, outside_layers), IsEmpty());
  EXPECT_EQ(rows.size(), 9U);
  for (const ParameterRow& row : rows)
    EXPECT_TRUE(row.name.starts_with("model.layers.1.")) << row.name;
}

TEST(ParameterTable, ATiedHeadIsACopyOfTheEmbeddingOnTheLastPart) {
  DecoderConfig config = table_model();
  config.tie_word_embeddings = true;
  const ModelDescription model = describe_model(config);
  const ModelPart first{{0, 2}, true, false};
  const ModelPart last{{2, 2}, false, true};
  const auto all = [](const ParameterRow&) { return true; };
  EXPECT_THAT(
      names_of(list_parameters(model, last), all),
      ElementsAre("model.embed_tokens.weight", "model.norm.weight"));
  const ParameterRow embedding =
      table_row_of(config, "model.embed_tokens.weight");
  EXPECT_EQ(embedding.tied_head, "lm_head.weight");
  EXPECT_TRUE(is_copy_for_head(embedding, last));
  EXPECT_FALSE(is_copy_for_head(embedding, first));
  EXPECT_FALSE(is_copy_for_head(embedding, whole_model(config)));
  EXPECT_FALSE(
      is_copy_for_head(table_row_of(config, "model.norm.weight"), last));
}

TEST(ParameterTable, TheEmbeddingIsRowSparseWhereItIsNotTheHead) {
  DecoderConfig config = table_model();
  const ModelPart first{{0, 2}, true, false};
  const ModelPart last{{2, 2}, false, true};
  const auto is_sparse = [&](const ModelPart& part) {
    return is_row_sparse(
        table_row_of(config, "model.embed_tokens.weight"), part);
  };
  EXPECT_TRUE(is_sparse(first));
  EXPECT_TRUE(is_sparse(whole_model(config)));
  EXPECT_FALSE(is_row_sparse(table_row_of(config, "lm_head.weight"), last));
  config.tie_word_embeddings = true;
  EXPECT_TRUE(is_sparse(first));
  EXPECT_FALSE(is_sparse(last));
  EXPECT_FALSE(is_sparse(whole_model(config)));
}

DecoderConfig with_experts() {
  DecoderConfig config = table_model();
  config.architecture = Architecture::kQwen2Moe;
  config.experts = ExpertsConfig{
      .num_experts = 2,
      .num_experts_per_tok = 1,
      .width = 6,
      .shared_width = 4,
      .mlp_only_layers = {0}};
  return config;
}

TEST(ParameterTable, ExpertsStandInPlaceOfTheMlpOfSparseLayers) {
  EXPECT_THAT(
      names_of(
          list_parameters(with_experts()),
          [](const auto& row) {
            return row.name.find("mlp") != row.name.npos;
          }),
      ElementsAre(
          "model.layers.0.mlp.gate_proj.weight",
          "model.layers.0.mlp.up_proj.weight",
          "model.layers.0.mlp.down_proj.weight",
          "model.layers.1.mlp.gate.weight",
          "model.layers.1.mlp.experts.0.gate_proj.weight",
          "model.layers.1.mlp.experts.0.up_proj.weight",
          "model.layers.1.mlp.experts.0.down_proj.weight",
          "model.layers.1.mlp.experts.1.gate_proj.weight",
          "model.layers.1.mlp.experts.1.up_proj.weight",
          "model.layers.1.mlp.experts.1.down_proj.weight",
          "model.layers.1.mlp.shared_expert.gate_proj.weight",
          "model.layers.1.mlp.shared_expert.up_proj.weight",
          "model.layers.1.mlp.shared_expert.down_proj.weight",
          "model.layers.1.mlp.shared_expert_gate.weight"));
}

TEST(ParameterTable, AnExpertsRowsSayWhereTheyAreInTheStackOfAll) {
  const DecoderConfig config = with_experts();
  const std::string layer = "model.layers.1.mlp.experts.";
  const ParameterRow up = table_row_of(config, layer + "1.up_proj.weight");
  EXPECT_EQ(up.expert, 1);
  EXPECT_EQ(up.stack, layer + "gate_up_proj");
  EXPECT_EQ(up.stack_row, 12 + 6);
  const ParameterRow down = table_row_of(config, layer + "1.down_proj.weight");
  EXPECT_EQ(down.stack, layer + "down_proj");
  EXPECT_EQ(down.stack_row, 8);
}

TEST(ParameterTable, APartHasTheExpertsOfItsRange) {
  const DecoderConfig config = with_experts();
  ModelPart part = whole_model(config);
  part.experts = {1, 2};
  EXPECT_THAT(
      names_of(
          list_parameters(describe_model(config), part),
          [](const auto& row) { return row.expert != kNoExpert; }),
      ElementsAre(
          "model.layers.1.mlp.experts.1.gate_proj.weight",
          "model.layers.1.mlp.experts.1.up_proj.weight",
          "model.layers.1.mlp.experts.1.down_proj.weight"));
}

}  // namespace
}  // namespace brigade
