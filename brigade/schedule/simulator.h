// Simulates a schedule: when each action would start and end, how long ranks
// would wait, and how many activations they would hold.
//
// PURE.
#pragma once

#include <vector>

#include "brigade/schedule/schedule.h"

namespace brigade {

// Times of one stage for one micro-batch, in any one unit. A whole backward
// takes backward_input + backward_weight.
struct StageTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
};

struct SimulationCosts {
  // One entry for all stages, or one per stage.
  std::vector<StageTimes> stages = {StageTimes{}};
  // From the end of a tensor's producer until a stage on another rank has it.
  double transfer = 0;
};

struct TimedAction {
  Action action;  // a computation
  double start = 0;
  double end = 0;
};

struct Simulation {
  double makespan = 0;
  // Computation of each rank in order.
  std::vector<std::vector<TimedAction>> per_rank;
  // Time in which a rank does not compute, over the makespan.
  std::vector<double> rank_bubble;
  double bubble = 0;  // mean over ranks
  // Most pairs of (stage of this rank, micro-batch) between the start of their
  // forward and the end of their backward (of its weight half, if in two).
  std::vector<int> peak_live_activations;
};

double duration(const Action& action, const SimulationCosts& costs);

// Requires that validate_computation() finds nothing. Sends, receives and
// reductions in the table take no time of their own.
Simulation simulate(const Schedule& schedule, const SimulationCosts& costs);

// The same for schedules that may be stuck: `stuck` gets the first action that
// no rank can start, for each rank that has one. Computation only.
Simulation simulate_until_stuck(
    const Schedule& schedule,
    const SimulationCosts& costs,
    std::vector<Action>& stuck);

}  // namespace brigade
