// The simulator against the closed forms of the papers.
#include "brigade/schedule/simulator.h"

#include <gmock/gmock.h>

#include <algorithm>

#include "brigade/schedule/make_schedule.h"

namespace brigade {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

Schedule schedule_of(
    ScheduleKind kind,
    int ranks,
    int micro_batches,
    int virtual_stages = 1) {
  return make_schedule(
      kind,
      {.ranks = ranks,
       .virtual_stages = virtual_stages,
       .micro_batches = micro_batches});
}

SimulationCosts costs(double forward, double input, double weight) {
  return {
      .stages =
          {{.forward = forward,
            .backward_input = input,
            .backward_weight = weight}},
      .transfer = 0};
}

TEST(Simulator, AfabAndOneFOneBHaveTheBubbleOfThePapers) {
  for (ScheduleKind kind : {ScheduleKind::kAfab, ScheduleKind::kOneFOneB}) {
    for (int p = 1; p <= 6; ++p) {
      for (int m : {p, p + 1, 2 * p, 8 * p}) {
        const Simulation result =
            simulate(schedule_of(kind, p, m), costs(1.0, 1.25, 0.75));
        EXPECT_NEAR(result.makespan, (m + p - 1) * 3.0, 1e-9);
        EXPECT_NEAR(
            result.bubble, static_cast<double>(p - 1) / (m + p - 1), 1e-12);
      }
    }
  }
}

TEST(Simulator, OneFOneBKeepsAsManyActivationsAsStagesFollow) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m) {
      const Simulation result =
          simulate(schedule_of(ScheduleKind::kOneFOneB, p, m), {});
      for (int rank = 0; rank < p; ++rank)
        EXPECT_EQ(
            result.peak_live_activations[static_cast<size_t>(rank)],
            std::min(m, p - rank));
    }
  }
}

TEST(Simulator, AfabKeepsAllActivations) {
  EXPECT_THAT(
      simulate(schedule_of(ScheduleKind::kAfab, 4, 9), {})
          .peak_live_activations,
      Each(9));
}

TEST(Simulator, InterleavingDividesTheBubbleByTheVirtualStages) {
  for (int p = 2; p <= 5; ++p) {
    for (int v = 2; v <= 4; ++v) {
      for (int m : {p, 2 * p, 4 * p}) {
        // A stage of 1/v of the layers takes 1/v of the time.
        const double part = 1.0 / v;
        const Simulation result = simulate(
            schedule_of(ScheduleKind::kInterleaved1F1B, p, m, v),
            costs(part, part, part));
        EXPECT_NEAR(result.makespan, 3.0 * m + (p - 1) * 3.0 / v, 1e-9)
            << p << " ranks, " << v << " virtual stages, " << m;
      }
    }
  }
}

TEST(Simulator, InterleavingKeepsTheActivationsThatMegatronStates) {
  const Simulation result =
      simulate(schedule_of(ScheduleKind::kInterleaved1F1B, 4, 16, 2), {});
  // (v-1)p + 2(p-1-r) + 1
  EXPECT_THAT(result.peak_live_activations, ElementsAre(11, 9, 7, 5));
}

TEST(Simulator, ZeroBubbleHasTheBubbleOfThePaper) {
  for (int p = 1; p <= 8; ++p) {
    for (int m : {p, p + 1, 2 * p, 4 * p}) {
      for (const auto& [f, b, w] :
           {std::tuple(1.0, 1.0, 1.0),
            std::tuple(1.0, 1.1, 0.9),
            std::tuple(1.0, 1.25, 0.75)}) {
        const Simulation result = simulate(
            schedule_of(ScheduleKind::kZeroBubble, p, m), costs(f, b, w));
        EXPECT_NEAR(
            result.makespan, m * (f + b + w) + (p - 1) * (f + b - w), 1e-9)
            << p << " ranks, " << m << " micro-batches, w " << w;
      }
    }
  }
}

TEST(Simulator, ZeroBubbleNeedsNoMoreActivationsThanTheFirstRankOf1F1B) {
  for (int p = 1; p <= 6; ++p) {
    for (int m = 1; m <= 12; ++m)
      EXPECT_THAT(
          simulate(schedule_of(ScheduleKind::kZeroBubble, p, m), {})
              .peak_live_activations,
          Each(std::min(m, p)));
  }
}

TEST(Simulator, TransfersDelayTheStageThatWaits) {
  // One micro-batch: down and up the pipeline with p-1 transfers each way.
  SimulationCosts slow = costs(1, 1, 1);
  slow.transfer = 0.5;
  EXPECT_DOUBLE_EQ(
      simulate(schedule_of(ScheduleKind::kOneFOneB, 3, 1), slow).makespan,
      3 * 3 + 2 * 2 * 0.5);
}

TEST(Simulator, TheSlowestStageSetsThePace) {
  SimulationCosts uneven;
  uneven.stages = {
      {.forward = 1, .backward_input = 1, .backward_weight = 1},
      {.forward = 2, .backward_input = 2, .backward_weight = 2}};
  const Simulation result =
      simulate(schedule_of(ScheduleKind::kOneFOneB, 2, 8), uneven);
  // Stage 1 waits for one forward of stage 0; stage 0 ends one backward later.
  EXPECT_DOUBLE_EQ(result.makespan, 1 + 8 * 6 + 2);
  EXPECT_DOUBLE_EQ(result.rank_bubble[1], 1 - 48.0 / 51.0);
}

}  // namespace
}  // namespace brigade
