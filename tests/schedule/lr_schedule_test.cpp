// Rates against the formulas of transformers' get_*_schedule_* and of
// torchtitan's linear_warmup_stable_decay, written down again here.
#include "brigade/schedule/lr_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace brigade {
namespace {

struct RunShape {
  int64_t total;
  int64_t warmup;
  int64_t decay;  // wsd
};

std::vector<RunShape> run_shapes() {
  std::vector<RunShape> all;
  for (const int64_t total : {1, 2, 3, 4, 6, 17, 100})
    for (const int64_t warmup : {0, 1, 2, 4, 10})
      for (const int64_t decay : {1, 2, 5})
        all.push_back({total, warmup, decay});
  return all;
}

LrScheduleOptions schedule_of(LrDecay decay, const RunShape& run) {
  return {
      .decay = decay,
      .peak = 8,
      .minimum = 0,
      .warmup_steps = run.warmup,
      .decay_steps = run.decay,
      .total_steps = run.total};
}

// transformers counts optimizer steps that are done: 0 before the first.
double progress_of(int64_t done, int64_t begin, int64_t total) {
  return static_cast<double>(done - begin) /
         static_cast<double>(std::max<int64_t>(1, total - begin));
}

TEST(LrSchedule, FallsAsInTransformers) {
  for (const RunShape& run : run_shapes()) {
    for (int64_t step = run.warmup + 1; step <= run.total; ++step) {
      const double whole = progress_of(step - 1, run.warmup, run.total);
      EXPECT_NEAR(
          learning_rate(schedule_of(LrDecay::kLinear, run), step),
          8 * (1 - whole),
          1e-12);
      EXPECT_NEAR(
          learning_rate(schedule_of(LrDecay::kCosine, run), step),
          8 * 0.5 * (1 + std::cos(std::acos(-1.0) * whole)),
          1e-12);
      const int64_t stable_end = std::max(run.warmup, run.total - run.decay);
      EXPECT_NEAR(
          learning_rate(schedule_of(LrDecay::kWsd, run), step),
          step <= stable_end
              ? 8
              : 8 * (1 - progress_of(step - 1, stable_end, run.total)),
          1e-12);
    }
  }
}

// get_inverse_sqrt_schedule() of transformers, whose time scale is the warm-up.
TEST(LrSchedule, FallsWithTheInverseRootAsInTransformers) {
  for (const RunShape& run : run_shapes()) {
    const double scale =
        run.warmup > 0 ? static_cast<double>(run.warmup) : 10000;
    for (int64_t step = run.warmup + 1; step <= run.total; ++step) {
      const double shift = scale - static_cast<double>(run.warmup);
      LrScheduleOptions schedule = schedule_of(LrDecay::kInverseSqrt, run);
      const double expected =
          8 / std::sqrt((static_cast<double>(step - 1) + shift) / scale);
      EXPECT_NEAR(learning_rate(schedule, step), expected, 1e-12);
      schedule.minimum = 3;
      EXPECT_NEAR(
          learning_rate(schedule, step), std::max(3.0, expected), 1e-12);
    }
  }
}

TEST(LrSchedule, RisesToThePeakAsInTorchtitan) {
  for (const RunShape& run : run_shapes()) {
    for (int64_t step = 1; step <= run.warmup; ++step)
      EXPECT_NEAR(
          learning_rate(schedule_of(LrDecay::kCosine, run), step),
          8 * static_cast<double>(step) / static_cast<double>(run.warmup),
          1e-12);
  }
}

TEST(LrSchedule, HasNoStepAtARateOfZero) {
  for (const RunShape& run : run_shapes()) {
    for (const LrDecay decay :
         {LrDecay::kConstant,
          LrDecay::kCosine,
          LrDecay::kLinear,
          LrDecay::kWsd,
          LrDecay::kInverseSqrt}) {
      for (int64_t step = 1; step <= run.total; ++step)
        EXPECT_GT(learning_rate(schedule_of(decay, run), step), 0)
            << static_cast<int>(decay) << ": step " << step << " of "
            << run.total << " after " << run.warmup;
    }
  }
}

TEST(LrSchedule, ReachesTheMinimumOneStepAfterTheLast) {
  for (const LrDecay decay :
       {LrDecay::kCosine, LrDecay::kLinear, LrDecay::kWsd}) {
    LrScheduleOptions schedule = schedule_of(decay, {10, 2, 4});
    schedule.minimum = 1;
    EXPECT_GT(learning_rate(schedule, 10), 1);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 11), 1);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 50), 1);
    schedule.end = LrEnd::kAtTotalTrainSteps;
    EXPECT_GT(learning_rate(schedule, 9), 1);
    EXPECT_DOUBLE_EQ(learning_rate(schedule, 10), 1);
  }
}

TEST(LrSchedule, WsdFallsInTheLastTenthByDefault) {
  const LrScheduleOptions schedule = schedule_of(LrDecay::kWsd, {100, 0, 0});
  EXPECT_EQ(learning_rate(schedule, 91), 8);
  EXPECT_NEAR(learning_rate(schedule, 92), 8 * 0.9, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 100), 8 * 0.1, 1e-12);
}

// nanochat's get_lr_multiplier(), which counts steps from 0.
double nanochat_multiplier(
    int64_t it,
    int64_t total,
    int64_t warmup,
    int64_t warmdown,
    double final_fraction) {
  if (it < warmup)
    return static_cast<double>(it + 1) / static_cast<double>(warmup);
  if (it <= total - warmdown)
    return 1;
  const double left =
      static_cast<double>(total - it) / static_cast<double>(warmdown);
  return left + (1 - left) * final_fraction;
}

TEST(LrSchedule, ATrapezoidIsCutByFractionsOfTheRun) {
  struct Case {
    int64_t total;
    double warmup, decay;
    int64_t warmup_steps, decay_steps;
  };
  for (const Case& run :
       {Case{100, 0.1, 0.2, 10, 20},
        Case{100, 0, 0.5, 0, 50},
        Case{10, 0.26, 0.34, 3, 3},
        Case{10, 0.4, 0.6, 4, 6},
        Case{40, 0, 1, 0, 40}}) {
    LrScheduleOptions schedule;
    schedule.decay = LrDecay::kTrapezoid;
    schedule.peak = 8;
    schedule.minimum = 0.8;
    schedule.total_steps = run.total;
    schedule.warmup_fraction = run.warmup;
    schedule.decay_fraction = run.decay;
    for (int64_t step = 1; step <= run.total; ++step)
      EXPECT_NEAR(
          learning_rate(schedule, step),
          8 * nanochat_multiplier(
                  step - 1, run.total, run.warmup_steps, run.decay_steps, 0.1),
          1e-12)
          << run.total << " steps, " << step;
  }
}

TEST(LrSchedule, ATrapezoidWithoutAFallStaysAtThePeak) {
  LrScheduleOptions schedule;
  schedule.decay = LrDecay::kTrapezoid;
  schedule.total_steps = 10;
  schedule.decay_fraction = 0;
  for (int64_t step = 1; step <= 10; ++step)
    EXPECT_EQ(learning_rate(schedule, step), schedule.peak);
}

// numpy.interp() of the points at the steps, or tokens, that are done.
TEST(LrSchedule, ATableIsLinearBetweenItsPoints) {
  LrScheduleOptions schedule;
  schedule.decay = LrDecay::kTable;
  schedule.peak = 2;
  schedule.table = LrTable{.points = {{2, 0}, {4, 1}, {9, 0.5}}};
  const std::vector<double> expected = {
      0, 0, 0, 1, 2, 1.8, 1.6, 1.4, 1.2, 1, 1, 1};
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(
        learning_rate(schedule, static_cast<int64_t>(i) + 1),
        expected[i],
        1e-12)
        << "after " << i;
}

TEST(LrSchedule, ATableByTokensReadsThoseBeforeTheStep) {
  LrScheduleOptions schedule;
  schedule.decay = LrDecay::kTable;
  schedule.peak = 1;
  schedule.table = LrTable{PointUnit::kTokens, {{0, 0}, {1000, 1}}};
  schedule.step_tokens = 100;
  EXPECT_NEAR(learning_rate(schedule, 1), 0, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 4), 0.3, 1e-12);
  // Two steps before it were of 250 tokens.
  schedule.tokens_ahead = 300;
  EXPECT_NEAR(learning_rate(schedule, 3), 0.5, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 30), 1, 1e-12);
}

}  // namespace
}  // namespace brigade
