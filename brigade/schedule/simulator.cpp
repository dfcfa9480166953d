#include "brigade/schedule/simulator.h"

#include <algorithm>
#include <numeric>

#include "brigade/base/check.h"

namespace brigade {
namespace {

constexpr double kNotYet = -1;

// End times of the results that other stages wait for, by (stage, micro-batch).
class EndTimes {
 public:
  EndTimes(int stages, int micro_batches)
      : micro_batches_(micro_batches),
        times_(
            static_cast<size_t>(stages) * static_cast<size_t>(micro_batches),
            kNotYet) {}
  double& at(int stage, int micro_batch) {
    return times_
        [static_cast<size_t>(stage) * static_cast<size_t>(micro_batches_) +
         static_cast<size_t>(micro_batch)];
  }

 private:
  int micro_batches_;
  std::vector<double> times_;
};

class Clock {
 public:
  Clock(const Schedule& schedule, const SimulationCosts& costs)
      : schedule_(schedule),
        costs_(costs),
        forward_(schedule.stages(), schedule.micro_batches),
        backward_(schedule.stages(), schedule.micro_batches),
        free_at_(schedule.per_rank.size(), 0.0) {}

  // True when the action's inputs exist; then it is placed and its end noted.
  bool place(int rank, const Action& action, TimedAction& placed) {
    const double ready = inputs_ready(action);
    if (ready == kNotYet)
      return false;
    double& free_at = free_at_[static_cast<size_t>(rank)];
    placed.action = action;
    placed.start = std::max(free_at, ready);
    placed.end = placed.start + duration(action, costs_);
    free_at = placed.end;
    if (action.kind == ActionKind::kForward)
      forward_.at(action.stage, action.micro_batch) = placed.end;
    else if (action.kind != ActionKind::kBackwardWeight)
      backward_.at(action.stage, action.micro_batch) = placed.end;
    return true;
  }

 private:
  double inputs_ready(const Action& action) {
    const int stage = action.stage;
    const int micro_batch = action.micro_batch;
    switch (action.kind) {
      case ActionKind::kForward:
        return stage == 0
                   ? 0
                   : arrival(
                         forward_.at(stage - 1, micro_batch), stage - 1, stage);
      case ActionKind::kBackwardWeight:
        return backward_.at(stage, micro_batch);
      default: {
        const double own = forward_.at(stage, micro_batch);
        if (stage == schedule_.stages() - 1 || own == kNotYet)
          return own;
        const double gradient =
            arrival(backward_.at(stage + 1, micro_batch), stage + 1, stage);
        return gradient == kNotYet ? kNotYet : std::max(own, gradient);
      }
    }
  }

  double arrival(double end, int from_stage, int to_stage) const {
    if (end == kNotYet ||
        schedule_.rank_of(from_stage) == schedule_.rank_of(to_stage))
      return end;
    return end + costs_.transfer;
  }

  const Schedule& schedule_;
  const SimulationCosts& costs_;
  EndTimes forward_;
  EndTimes backward_;
  std::vector<double> free_at_;
};

int peak_live(const std::vector<TimedAction>& actions) {
  int live = 0;
  int peak = 0;
  for (const TimedAction& timed : actions) {
    if (timed.action.kind == ActionKind::kForward)
      peak = std::max(peak, ++live);
    else if (timed.action.kind != ActionKind::kBackwardInput)
      --live;
  }
  return peak;
}

}  // namespace

double duration(const Action& action, const SimulationCosts& costs) {
  const auto entry =
      costs.stages.size() == 1 ? size_t{0} : static_cast<size_t>(action.stage);
  BRIGADE_ASSERT(
      entry < costs.stages.size(),
      "stage {} of {} costs",
      action.stage,
      costs.stages.size());
  const StageTimes& times = costs.stages[entry];
  switch (action.kind) {
    case ActionKind::kForward:
      return times.forward;
    case ActionKind::kBackward:
      return times.backward_input + times.backward_weight;
    case ActionKind::kBackwardInput:
      return times.backward_input;
    case ActionKind::kBackwardWeight:
      return times.backward_weight;
    default:
      return 0;
  }
}

Simulation simulate_until_stuck(
    const Schedule& schedule,
    const SimulationCosts& costs,
    std::vector<Action>& stuck) {
  const size_t ranks = schedule.per_rank.size();
  Simulation result;
  result.per_rank.resize(ranks);
  Clock clock(schedule, costs);
  std::vector<size_t> next(ranks, 0);
  // Start times depend on inputs and on the rank's own past alone, so ranks
  // may be advanced in any order: each as far as it gets, until none moves.
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const std::vector<Action>& actions = schedule.per_rank[rank];
      for (; next[rank] < actions.size(); ++next[rank]) {
        const Action& action = actions[next[rank]];
        if (!is_computation(action.kind))
          continue;
        TimedAction placed;
        if (!clock.place(static_cast<int>(rank), action, placed))
          break;
        result.per_rank[rank].push_back(placed);
        moved = true;
      }
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (next[rank] < schedule.per_rank[rank].size())
      stuck.push_back(schedule.per_rank[rank][next[rank]]);
    if (!result.per_rank[rank].empty())
      result.makespan =
          std::max(result.makespan, result.per_rank[rank].back().end);
  }
  for (const std::vector<TimedAction>& actions : result.per_rank) {
    double busy = 0;
    for (const TimedAction& timed : actions)
      busy += timed.end - timed.start;
    result.rank_bubble.push_back(
        result.makespan > 0 ? 1 - busy / result.makespan : 0);
    result.peak_live_activations.push_back(
        schedule.passes == Passes::kForwardOnly ? 0 : peak_live(actions));
  }
  if (ranks > 0)
    result.bubble =
        std::accumulate(
            result.rank_bubble.begin(), result.rank_bubble.end(), 0.0) /
        static_cast<double>(ranks);
  return result;
}

Simulation simulate(const Schedule& schedule, const SimulationCosts& costs) {
  std::vector<Action> stuck;
  Simulation result = simulate_until_stuck(schedule, costs, stuck);
  BRIGADE_ASSERT(stuck.empty(), "{} never starts", describe(stuck.front()));
  return result;
}

}  // namespace brigade
