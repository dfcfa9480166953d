#include "brigade/planner/search.h"

#include <gtest/gtest.h>

#include <set>

#include "support.h"

namespace brigade::planner {
namespace {

Training small_search() {
  Training training = llama_on("h100");
  training.batch.sequences = 64;
  return training;
}

TEST(Search, ListsOnlyWhatCanBeAndFitsQuickestFirst) {
  StepEstimator estimator(small_search());
  const SearchResult result = search(estimator, {.devices = 16});
  ASSERT_GT(result.fitting.size(), 100u);
  EXPECT_EQ(
      result.possible,
      static_cast<int64_t>(result.fitting.size()) + result.too_large);
  std::set<std::string> seen;
  double before = 0;
  for (const StepEstimate& plan : result.fitting) {
    std::vector<std::string> problems;
    validate_layout(
        plan.layout,
        estimator.training().shape,
        estimator.training().batch,
        16,
        problems);
    EXPECT_TRUE(problems.empty()) << problems.front();
    EXPECT_TRUE(fits(plan.memory, estimator.training().machine.device, 0.95));
    EXPECT_GE(plan.seconds, before);
    before = plan.seconds;
    EXPECT_TRUE(seen.insert(to_string(plan.layout)).second)
        << to_string(plan.layout) << " is listed twice";
  }
}

// The naive twin: every combination of sizes, tried one by one.
TEST(Search, FindsWhatTryingEverythingFinds) {
  const Training training = small_search();
  StepEstimator estimator(training);
  SearchOptions options;
  options.devices = 8;
  options.zero_stages = {0};
  options.recompute = {Recompute::kNone};
  options.most_micro_batch = 2;
  const SearchResult result = search(estimator, options);
  std::set<std::string> possible;
  for (int dp = 1; dp <= 8; ++dp)
    for (int tp = 1; tp <= 8; ++tp)
      for (int pp = 1; pp <= 8; ++pp)
        for (int cp = 1; cp <= 8; ++cp)
          for (int mb : {1, 2})
            for (bool sharded : {false, true})
              for (ScheduleKind kind :
                   {ScheduleKind::kAfab,
                    ScheduleKind::kOneFOneB,
                    ScheduleKind::kZeroBubble}) {
                Layout layout;
                layout.dims = {.dp = dp, .tp = tp, .pp = pp, .cp = cp};
                layout.micro_batch = mb;
                layout.schedule = kind;
                if (sharded)
                  layout.tokens = TokenLayout::kSharded;
                std::vector<std::string> problems;
                validate_layout(
                    layout, training.shape, training.batch, 8, problems);
                const bool is_twin =
                    (tp == 1 && sharded) ||
                    (pp == 1 && kind != ScheduleKind::kOneFOneB);
                if (problems.empty() && !is_twin)
                  possible.insert(to_string(layout));
              }
  int64_t without_interleaved = 0;
  SearchOptions plain = options;
  plain.most_virtual_stages = 1;
  without_interleaved = search(estimator, plain).possible;
  EXPECT_EQ(without_interleaved, static_cast<int64_t>(possible.size()));
  EXPECT_GT(result.possible, without_interleaved);
}

// Again every combination of sizes; with 1F1B all of them fit.
TEST(Search, FindsEveryDivisionOfExperts) {
  Training training = small_search();
  training.shape = qwen3_30b_a3b();
  training.shape.layers = 8;
  training.shape.experts->num_experts = 12;
  StepEstimator estimator(training);
  const SearchOptions options = {
      .devices = 8,
      .zero_stages = {0},
      .recompute = {Recompute::kNone},
      .most_micro_batch = 1,
      .most_virtual_stages = 1};
  std::set<std::string> possible;
  for (int dp = 1; dp <= 8; ++dp)
    for (int tp = 1; tp <= 8; ++tp)
      for (int pp = 1; pp <= 8; ++pp)
        for (int cp = 1; cp <= 8; ++cp)
          for (int ep = 1; ep <= 8; ++ep) {
            Layout layout;
            layout.dims = {.dp = dp, .tp = tp, .pp = pp, .cp = cp, .ep = ep};
            std::vector<std::string> problems;
            validate_layout(
                layout, training.shape, training.batch, 8, problems);
            if (problems.empty())
              possible.insert(to_string(layout));
          }
  // Without the other schedules, and sequence parallel.
  std::set<std::string> found;
  const SearchResult result = search(estimator, options);
  for (const StepEstimate& plan : result.fitting) {
    if (plan.layout.tokens == TokenLayout::kReplicated &&
        plan.layout.schedule == ScheduleKind::kOneFOneB)
      found.insert(to_string(plan.layout));
  }
  EXPECT_EQ(found, possible);
  EXPECT_TRUE(possible.count("dp8-tp1-pp1-cp1-ep4-zero0-mb1-1f1b-v1-none"));
  EXPECT_FALSE(possible.count("dp8-tp1-pp1-cp1-ep8-zero0-mb1-1f1b-v1-none"));
}

// Thirty billion parameters are too many for a device with all experts.
TEST(Search, DividesTheExpertsOfALargeModel) {
  Training training = llama_on("h100");
  training.shape = qwen3_30b_a3b();
  training.batch = {.sequence_tokens = 4096, .sequences = 1024};
  StepEstimator estimator(training);
  const SearchResult result = search(
      estimator,
      {.devices = 64,
       .zero_stages = {1},
       .recompute = {Recompute::kNone, Recompute::kFull},
       .most_micro_batch = 2});
  ASSERT_FALSE(result.fitting.empty());
  EXPECT_GT(result.fitting.front().layout.dims.ep, 1);
}

TEST(Search, SaysTheLeastThatFitsWhereNothingDoes) {
  Training training = llama_on("h100");
  training.shape.layers = 126;
  training.shape.hidden = 16384;
  training.shape.heads = 128;
  training.shape.intermediate = 53248;
  StepEstimator estimator(training);
  const SearchOptions options = {.devices = 8};
  const SearchResult result = search(estimator, options);
  EXPECT_TRUE(result.fitting.empty());
  EXPECT_GT(result.least_memory.total(), 80e9);
  const LeastThatFits least = least_that_fits(training, options, result);
  // 405 B parameters of 16 bytes are 6.5 TB: more than 64 devices of 80 GB.
  EXPECT_GE(least.devices, 128);
  EXPECT_LE(least.devices, 512);
  EXPECT_GT(least.bytes_each, result.least_memory.total());
}

TEST(Search, SaysWhichPartsMakeALayoutSlower) {
  StepEstimate best;
  best.seconds = 10;
  best.parts.computation.products = 8;
  best.parts.bubble = 2;
  StepEstimate other = best;
  other.parts.computation.tp = 1.5;
  other.parts.bubble = 1.75;
  EXPECT_EQ(why_slower(best, other), "tp +1.5 s, bubble -0.25 s");
  EXPECT_EQ(why_slower(best, best), "no part differs by 0.1 %");
}

}  // namespace
}  // namespace brigade::planner
