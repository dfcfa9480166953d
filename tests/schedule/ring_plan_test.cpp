#include "brigade/schedule/ring_plan.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

std::vector<RingStep> plan(
    int64_t sequence_tokens,
    int size,
    int rank,
    std::optional<int64_t> window = std::nullopt) {
  return plan_ring(
      {.sequence_tokens = sequence_tokens,
       .ring_size = size,
       .ring_rank = rank,
       .sliding_window = window});
}

TEST(RingPlan, LeavesOutHiddenChunks) {
  // Chunks of 3 tokens; rank 1 holds the chunks 1 and 6.
  EXPECT_EQ(
      plan(24, 4, 1),
      (std::vector<RingStep>{
          {1, {0, 6}, {0, 6}},
          {0, {0, 6}, {0, 3}},
          {3, {3, 6}, {0, 6}},
          {2, {3, 6}, {0, 6}}}));
}

TEST(RingPlan, TakesASequenceOfOneRankWhole) {
  EXPECT_EQ(plan(7, 1, 0), (std::vector<RingStep>{{0, {0, 7}, {0, 7}}}));
}

TEST(RingPlan, SeesEverythingWithoutACausalMask) {
  for (const RingStep& step : plan_ring(
           {.sequence_tokens = 12,
 .ring_size = 3,
 .ring_rank = 1,
 .causal = false})) {
    EXPECT_EQ(step.queries, (TokenRange{0, 4}));
    EXPECT_EQ(step.keys, (TokenRange{0, 4}));
  }
}

TEST(RingPlan, GivesEveryRankTheSameWorkInEveryStep) {
  for (int size : {2, 3, 4, 7}) {
    const int64_t chunk = 5;
    for (int rank = 0; rank < size; ++rank) {
      const auto steps = plan(2 * size * chunk, size, rank);
      for (size_t i = 1; i < steps.size(); ++i)
        EXPECT_EQ(
            steps[i].queries.size() * steps[i].keys.size(), 2 * chunk * chunk);
    }
  }
}

// The naive twin: every pair of tokens that see each other must lie in the
// rectangle of the step that brings the key.
TEST(RingPlan, CoversEveryVisiblePair) {
  for (const std::optional<int64_t> window :
       {std::optional<int64_t>(),
        std::optional<int64_t>(1),
        std::optional<int64_t>(4),
        std::optional<int64_t>(9)}) {
    for (int size : {1, 2, 3, 4}) {
      const int64_t total = 2L * size * 3;
      for (int rank = 0; rank < size; ++rank) {
        const auto queries = token_positions(total, size, rank);
        for (const RingStep& step : plan(total, size, rank, window)) {
          const auto keys = token_positions(total, size, step.source);
          for (size_t q = 0; q < queries.size(); ++q) {
            for (size_t k = 0; k < keys.size(); ++k) {
              const bool visible = keys[k] <= queries[q] &&
                                   (!window || keys[k] > queries[q] - *window);
              const auto inside = [](const TokenRange& range, size_t i) {
                return static_cast<int64_t>(i) >= range.begin &&
                       static_cast<int64_t>(i) < range.end;
              };
              EXPECT_TRUE(
                  !visible || (inside(step.queries, q) && inside(step.keys, k)))
                  << "window " << window.value_or(0) << " ring " << size
                  << " rank " << rank << " source " << step.source;
            }
          }
        }
      }
    }
  }
}

TEST(RingPlan, HidesBlocksBeyondTheWindow) {
  // Chunks of 2: rank 0 holds 0 and 7, rank 1 1 and 6, rank 2 2 and 5, rank 3 3
  // and 4. A window of 2 reaches one token back, into the chunk before.
  const auto steps = plan(16, 4, 0, 2);
  EXPECT_FALSE(steps[0].is_hidden());
  EXPECT_EQ(steps[3], (RingStep{1, {2, 4}, {2, 4}}));  // chunk 7 sees chunk 6
  EXPECT_TRUE(steps[1].is_hidden());
  EXPECT_TRUE(steps[2].is_hidden());
}

// The naive twin: the smallest run of a block's chunks that holds every token
// which a token of another rank sees.
TEST(RingPlan, SendsWhatOthersSee) {
  const int64_t chunk = 3;
  for (const std::optional<int64_t> window :
       {std::optional<int64_t>(),
        std::optional<int64_t>(1),
        std::optional<int64_t>(4),
        std::optional<int64_t>(9)}) {
    for (int size : {2, 3, 4, 5}) {
      const int64_t total = 2 * size * chunk;
      for (int owner = 0; owner < size; ++owner) {
        const auto keys = token_positions(total, size, owner);
        TokenRange seen;
        for (int64_t i = 0; i < 2 * chunk; ++i) {
          bool is_seen = false;
          for (int rank = 0; rank < size; ++rank) {
            if (rank == owner)
              continue;
            for (const int64_t query : token_positions(total, size, rank)) {
              const int64_t key = keys[static_cast<size_t>(i)];
              is_seen |= key <= query && (!window || key > query - *window);
            }
          }
          if (!is_seen)
            continue;
          const int64_t begin = i / chunk * chunk;
          if (seen.size() == 0)
            seen = {begin, begin + chunk};
          seen.end = begin + chunk;
        }
        const TokenRange travelling = travelling_tokens(
            {.sequence_tokens = total,
             .ring_size = size,
             .sliding_window = window},
            owner);
        EXPECT_EQ(travelling, seen)
            << "window " << window.value_or(0) << " ring " << size << " owner "
            << owner << ": " << travelling.begin << ".." << travelling.end;
      }
    }
  }
}

TEST(RingPlan, KeepsTheEndOfTheSequenceAtHome) {
  const RingPlanOptions options{.sequence_tokens = 24, .ring_size = 4};
  EXPECT_EQ(travelling_tokens(options, 0), (TokenRange{0, 3}));
  EXPECT_EQ(travelling_tokens(options, 1), (TokenRange{0, 6}));
}

}  // namespace
}  // namespace brigade
