#include "brigade/model_spec/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const TensorParallelSizes kShardSizes{
    .num_attention_heads = 4,
    .num_key_value_heads = 2,
    .intermediate_size = 8};

constexpr auto kReplicated = TokenLayout::kReplicated;
constexpr auto kSharded = TokenLayout::kSharded;

// A row of a model of those sizes, with head size 3, hidden size 8, a
// vocabulary of 13, every bias and norms of heads.
ParameterRow row_of(const std::string& name) {
  DecoderConfig config;
  config.num_attention_heads = kShardSizes.num_attention_heads;
  config.num_key_value_heads = kShardSizes.num_key_value_heads;
  config.intermediate_size = kShardSizes.intermediate_size;
  config.head_dim = 3;
  config.hidden_size = 8;
  config.vocab_size = 13;
  config.num_hidden_layers = 1;
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = true;
  for (const ParameterRow& row : list_parameters(config)) {
    if (row.name == name)
      return row;
  }
  ADD_FAILURE() << name << " is not in the table";
  return {};
}

ParamShard shard(
    const std::string& name,
    int tp,
    int rank,
    TokenLayout tokens = kReplicated) {
  return shard_parameter(row_of(name), {.tp = tp}, {.tp = rank}, tokens);
}

// The rows (or columns) that each rank holds, in rank order.
std::vector<std::pair<int64_t, int64_t>> cuts(const std::string& name, int tp) {
  std::vector<std::pair<int64_t, int64_t>> result;
  for (int rank = 0; rank < tp; ++rank) {
    const ParamShard part = shard(name, tp, rank);
    result.emplace_back(part.slice.begin, part.slice.end);
  }
  return result;
}

using Pair = std::pair<int64_t, int64_t>;

TEST(Shard, CutsQueryHeadsAndTheMlpByRowsTheirPartnersByColumns) {
  EXPECT_THAT(
      cuts("model.layers.0.self_attn.q_proj.weight", 2),
      ElementsAre(Pair{0, 6}, Pair{6, 12}));
  EXPECT_THAT(
      cuts("model.layers.0.mlp.up_proj.weight", 4),
      ElementsAre(Pair{0, 2}, Pair{2, 4}, Pair{4, 6}, Pair{6, 8}));
  const ParamShard o = shard("model.layers.0.self_attn.o_proj.weight", 2, 1);
  EXPECT_THAT(o.shape, ElementsAre(8, 6));
  EXPECT_EQ(o.slice, (Slice{1, 6, 12}));
  EXPECT_EQ(o.replicas, 1);
  EXPECT_EQ(o.gradient_ranks, 1);
}

TEST(Shard, PadsAnOddVocabularyToEqualParts) {
  // ceil(13 / 4) = 4 rows: 4, 4, 4 and 1 with three of padding.
  EXPECT_THAT(
      cuts("model.embed_tokens.weight", 4),
      ElementsAre(Pair{0, 4}, Pair{4, 8}, Pair{8, 12}, Pair{12, 13}));
  EXPECT_THAT(shard("lm_head.weight", 4, 3).shape, ElementsAre(4, 8));
  EXPECT_EQ(vocab_rows_per_rank(13, 1), 13);
}

TEST(Shard, GivesARankBeyondTheVocabularyPaddingAlone) {
  // ceil(5 / 4) = 2 rows: 2, 2, 1, 0.
  ParameterRow head = row_of("lm_head.weight");
  head.shape = {5, 8};
  head.cut.count = 5;
  const ParamShard last =
      shard_parameter(head, {.tp = 4}, {.tp = 3}, kReplicated);
  EXPECT_EQ(last.slice, (Slice{0, 5, 5}));
  EXPECT_THAT(last.shape, ElementsAre(2, 8));
}

TEST(Shard, ReplicatesKvHeadsThatAreFewerThanRanks) {
  // 2 kv heads of 3 rows over 4 ranks: 0 0 1 1.
  EXPECT_THAT(
      cuts("model.layers.0.self_attn.k_proj.weight", 4),
      ElementsAre(Pair{0, 3}, Pair{0, 3}, Pair{3, 6}, Pair{3, 6}));
  const ParamShard part = shard("model.layers.0.self_attn.v_proj.bias", 4, 3);
  EXPECT_EQ(part.replicas, 2);
  EXPECT_EQ(part.gradient_ranks, 2);
  EXPECT_FALSE(part.is_first_replica);
  EXPECT_TRUE(
      shard("model.layers.0.self_attn.v_proj.bias", 4, 2).is_first_replica);
  EXPECT_EQ(kv_heads_per_rank(2, 4), 1);
  EXPECT_EQ(kv_heads_per_rank(8, 4), 2);
  EXPECT_EQ(kv_replicas(2, 4), 2);
  EXPECT_EQ(kv_replicas(8, 4), 1);
}

TEST(Shard, SumsNormsAndRowBiasesOnlyWhereTokensAreSharded) {
  for (const char* name :
       {"model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.self_attn.o_proj.bias",
        "model.layers.0.mlp.down_proj.bias"}) {
    const ParamShard whole = shard(name, 4, 1, kReplicated);
    EXPECT_EQ(whole.slice.dim, kNotCut) << name;
    EXPECT_EQ(whole.replicas, 4) << name;
    EXPECT_EQ(whole.gradient_ranks, 1) << name;
    EXPECT_EQ(shard(name, 4, 1, kSharded).gradient_ranks, 4) << name;
  }
}

TEST(Shard, AlwaysSumsNormsOfSingleHeads) {
  EXPECT_EQ(
      shard("model.layers.0.self_attn.q_norm.weight", 4, 0).gradient_ranks, 4);
}

TEST(Shard, CoversEveryElementOnceOverFirstReplicas) {
  for (const char* name :
       {"model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.self_attn.o_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.norm.weight"}) {
    const ParameterRow row = row_of(name);
    for (int tp : {1, 2, 4}) {
      int64_t covered = 0;
      int64_t expected_begin = 0;
      for (int rank = 0; rank < tp; ++rank) {
        const ParamShard part = shard(name, tp, rank);
        if (!part.is_first_replica)
          continue;
        if (part.slice.dim == kNotCut) {
          covered += row.shape[0];
          continue;
        }
        EXPECT_EQ(part.slice.begin, expected_begin) << name << " tp " << tp;
        expected_begin = part.slice.end;
        covered += part.slice.length();
      }
      const auto dim = static_cast<size_t>(std::max(0, row.cut.dim));
      EXPECT_EQ(covered, row.shape[dim]) << name << " tp " << tp;
    }
  }
}

TEST(ValidateTensorParallel, NamesTheNearestSizesThatFit) {
  std::vector<std::string> problems;
  const TensorParallelSizes sizes{6, 3, 24};
  validate_tensor_parallel(sizes, {.tp = 4}, problems);
  EXPECT_THAT(
      problems,
      ElementsAre(
          "[tensor_parallel] num_attention_heads = 6 cannot be cut for tp 4; "
          "nearest "
          "tp sizes that fit this model: 3, 6",
          "[tensor_parallel] num_key_value_heads = 3 cannot be cut for tp 4; "
          "nearest tp "
          "sizes that fit this model: 3, 6"));
}

TEST(ValidateTensorParallel, AcceptsKvHeadsFewerThanRanksAndAnyVocabulary) {
  std::vector<std::string> problems;
  for (int tp : {1, 2, 4})
    validate_tensor_parallel(kShardSizes, {.tp = tp}, problems);
  EXPECT_THAT(problems, ElementsAre());
}

TEST(ValidateTensorParallel, NamesAnMlpThatDoesNotFit) {
  std::vector<std::string> problems;
  validate_tensor_parallel({4, 4, 9}, {.tp = 2}, problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_THAT(problems[0], HasSubstr("intermediate_size = 9 cannot be cut"));
  EXPECT_THAT(problems[0], HasSubstr("fit this model: 1"));
  problems.clear();
  validate_tensor_parallel(kShardSizes, {.tp = 0}, problems);
  EXPECT_THAT(
      problems,
      ElementsAre("[tensor_parallel] tp must be at least 1, but is 0"));
}

}  // namespace
}  // namespace brigade
