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

TEST(LrSchedule, WsdFallsInTheLastTenthWhereNothingElseIsSaid) {
  const LrScheduleOptions schedule = schedule_of(LrDecay::kWsd, {100, 0, 0});
  EXPECT_EQ(learning_rate(schedule, 91), 8);
  EXPECT_NEAR(learning_rate(schedule, 92), 8 * 0.9, 1e-12);
  EXPECT_NEAR(learning_rate(schedule, 100), 8 * 0.1, 1e-12);
}

}  // namespace
}  // namespace brigade
