// The pieces of an attention against its mask, pair by pair.
#include "brigade/kernels/aten/flash_plan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace brigade::ops {
namespace {

using Ranges = std::vector<PositionRange>;

std::vector<int64_t> positions_of(const Ranges& ranges, int64_t numel) {
  std::vector<int64_t> result(static_cast<size_t>(numel));
  std::iota(result.begin(), result.end(), 0);
  size_t token = 0;
  for (const auto& [begin, count] : ranges) {
    for (int64_t i = 0; i < count; ++i)
      result[token++] = begin + i;
  }
  return result;
}

struct Masked {
  const char* name;
  AttentionOptions options;
  int64_t queries;
  int64_t keys;
  size_t pieces;
};

Masked masked(
    const char* name,
    const Ranges& queries,
    const Ranges& keys,
    size_t pieces) {
  const auto numel = [](const Ranges& ranges) {
    int64_t sum = 0;
    for (const PositionRange& range : ranges)
      sum += range.numel;
    return sum;
  };
  AttentionOptions options;
  options.query_positions = queries;
  options.key_positions = keys;
  return {name, options, numel(queries), numel(keys), pieces};
}

std::vector<Masked> masks() {
  AttentionOptions whole;
  whole.causal = false;
  return {
      {"causal", {}, 5, 5, 1},
      {"whole", whole, 4, 9, 1},
      {"no_keys", {}, 4, 0, 0},
      masked("one_token_after_a_cache", {{7, 1}}, {{0, 8}}, 2),
      masked("some_tokens_after_a_cache", {{90, 5}}, {{0, 95}}, 2),
      masked("keys_from_the_middle", {{0, 8}}, {{3, 5}}, 1),
      masked("keys_to_the_middle", {{2, 8}}, {{0, 5}}, 3),
      masked("hidden", {{0, 4}}, {{10, 4}}, 0),
      // Ring attention of four ranks: rank 1's chunks.
      masked("own_block", {{4, 4}, {24, 4}}, {{4, 4}, {24, 4}}, 3),
      masked("first_half_of_a_block", {{4, 4}, {24, 4}}, {{0, 4}}, 1),
      masked("block_for_the_second_half", {{24, 4}}, {{12, 4}, {16, 4}}, 1)};
}

class FlashPlan : public ::testing::TestWithParam<Masked> {};

TEST_P(FlashPlan, HasEveryVisiblePairOnce) {
  const auto& [name, options, queries, keys, count] = GetParam();
  const auto pieces = plan_flash(options, queries, keys);
  EXPECT_EQ(pieces.size(), count);
  const auto query_at = positions_of(options.query_positions, queries);
  const auto key_at = positions_of(options.key_positions, keys);
  std::vector<int> seen(static_cast<size_t>(queries * keys));
  for (const FlashPiece& piece : pieces) {
    if (piece.is_diagonal) {
      EXPECT_EQ(piece.queries.numel, piece.keys.numel);
    }
    for (int64_t q = 0; q < piece.queries.numel; ++q) {
      const int64_t end = piece.is_diagonal ? q + 1 : piece.keys.numel;
      for (int64_t k = 0; k < end; ++k) {
        ++seen.at(static_cast<size_t>(
            (piece.queries.first + q) * keys + piece.keys.first + k));
      }
    }
  }
  for (int64_t q = 0; q < queries; ++q) {
    for (int64_t k = 0; k < keys; ++k) {
      const bool is_visible =
          !options.causal ||
          key_at[static_cast<size_t>(k)] <= query_at[static_cast<size_t>(q)];
      EXPECT_EQ(seen[static_cast<size_t>(q * keys + k)], is_visible ? 1 : 0)
          << "query " << q << ", key " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Masks,
    FlashPlan,
    ::testing::ValuesIn(masks()),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace brigade::ops
