#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "brigade/schedule/schedule.h"
#include "brigade/schedule/schedule_rehearsal.h"
#include "brigade/schedule/simulator.h"

namespace brigade {
namespace {

using Problems = std::vector<std::string>;

bool shape_is_valid(const Schedule& schedule, Problems& problems) {
  if (schedule.ranks < 1 || schedule.virtual_stages < 1 ||
      schedule.micro_batches < 1) {
    problems.push_back(fmt::format(
        "{} ranks, {} virtual stages and {} micro-batches, but each is at "
        "least 1",
        schedule.ranks,
        schedule.virtual_stages,
        schedule.micro_batches));
  } else if (static_cast<int>(schedule.per_rank.size()) != schedule.ranks) {
    problems.push_back(fmt::format(
        "the table has {} rows, but there are {} ranks",
        schedule.per_rank.size(),
        schedule.ranks));
  }
  for (size_t rank = 0; problems.empty() && rank < schedule.per_rank.size();
       ++rank) {
    for (const Action& action : schedule.per_rank[rank]) {
      if (action.stage < 0 || action.stage >= schedule.stages() ||
          action.micro_batch < 0 ||
          action.micro_batch >= schedule.micro_batches) {
        problems.push_back(fmt::format(
            "rank {}: {}, but there are {} stages and {} micro-batches",
            rank,
            describe(action),
            schedule.stages(),
            schedule.micro_batches));
      } else if (schedule.rank_of(action.stage) != static_cast<int>(rank)) {
        problems.push_back(fmt::format(
            "rank {}: {}, but that stage lies on rank {}",
            rank,
            describe(action),
            schedule.rank_of(action.stage)));
      }
    }
  }
  return problems.empty();
}

// How often each computation of one (stage, micro-batch) has been met.
struct Visits {
  int forward = 0;
  int backward = 0;
  int backward_input = 0;
  int backward_weight = 0;
};

// Exactly once, and in order on the rank itself.
void check_visits(const Schedule& schedule, Problems& problems) {
  const bool backward = schedule.passes == Passes::kForwardAndBackward;
  const auto micro_batches = static_cast<size_t>(schedule.micro_batches);
  std::vector<Visits> visits(
      static_cast<size_t>(schedule.stages()) * micro_batches);
  const auto at = [&](int stage, int micro_batch) -> Visits& {
    return visits
        [static_cast<size_t>(stage) * micro_batches +
         static_cast<size_t>(micro_batch)];
  };
  for (const std::vector<Action>& actions : schedule.per_rank) {
    for (const Action& action : actions) {
      Visits& seen = at(action.stage, action.micro_batch);
      switch (action.kind) {
        case ActionKind::kForward:
          ++seen.forward;
          break;
        case ActionKind::kBackward:
        case ActionKind::kBackwardInput:
          ++(action.kind == ActionKind::kBackward ? seen.backward
                                                  : seen.backward_input);
          if (seen.forward == 0)
            problems.push_back(describe(action) + " comes before its forward");
          break;
        case ActionKind::kBackwardWeight:
          ++seen.backward_weight;
          if (seen.backward_input == 0)
            problems.push_back(
                describe(action) + " comes before its input half");
          break;
        default:
          break;
      }
    }
  }
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    for (int micro_batch = 0; micro_batch < schedule.micro_batches;
         ++micro_batch) {
      const Visits& seen = at(stage, micro_batch);
      const int wanted = backward ? 1 : 0;
      const bool whole = seen.backward == wanted && seen.backward_input == 0 &&
                         seen.backward_weight == 0;
      const bool halves = seen.backward == 0 && seen.backward_input == wanted &&
                          seen.backward_weight == wanted;
      if (seen.forward == 1 && (whole || halves))
        continue;
      problems.push_back(fmt::format(
          "micro-batch {} on stage {}: {} forward, {} backward, {} input and "
          "{} weight halves, but {}",
          micro_batch,
          stage,
          seen.forward,
          seen.backward,
          seen.backward_input,
          seen.backward_weight,
          backward ? "one forward and one backward, whole or in two halves, "
                     "are needed"
                   : "one forward alone is needed"));
    }
  }
}

// The computation of a stage, in order, with its reductions.
std::vector<ActionKind> kinds_of(const Schedule& schedule, int stage) {
  std::vector<ActionKind> kinds;
  for (const Action& action :
       schedule.per_rank[static_cast<size_t>(schedule.rank_of(stage))]) {
    if (action.stage == stage && !is_communication(action.kind))
      kinds.push_back(action.kind);
  }
  return kinds;
}

// Whether gradients are final before `left`, or become so during it: a bucket
// is launched when its last gradient arrives, so one whole backward may follow
// and nothing else. A forward or a half behind the reduction would mean that
// gradients arrive later, or that the stage holds more than the executor asks
// it about (PipelineExecutor::reduce()).
bool may_reduce_before(std::span<const ActionKind> left) {
  const auto adds_gradients = [](ActionKind kind) {
    return kind == ActionKind::kBackward ||
           kind == ActionKind::kBackwardInput ||
           kind == ActionKind::kBackwardWeight;
  };
  const auto backwards =
      std::count_if(left.begin(), left.end(), adds_gradients);
  const bool one_whole =
      backwards == 1 && left.front() == ActionKind::kBackward;
  return backwards == 0 || one_whole;
}

void check_reductions(const Schedule& schedule, Problems& problems) {
  if (schedule.passes == Passes::kForwardOnly)
    return;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const std::vector<ActionKind> kinds = kinds_of(schedule, stage);
    int reductions = 0;
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i] != ActionKind::kReduceGradients)
        continue;
      ++reductions;
      if (!may_reduce_before(std::span(kinds).subspan(i + 1)))
        problems.push_back(fmt::format(
            "the gradients of stage {} are reduced neither right before a "
            "whole backward that is all it has left nor after all of them",
            stage));
    }
    if (reductions != 1)
      problems.push_back(fmt::format(
          "the gradients of stage {} are reduced {} times, but once is needed",
          stage,
          reductions));
  }
}

}  // namespace

std::vector<std::string> validate_computation(const Schedule& schedule) {
  Problems problems;
  if (!shape_is_valid(schedule, problems))
    return problems;
  check_visits(schedule, problems);
  if (!problems.empty())
    return problems;
  std::vector<Action> stuck;
  simulate_until_stuck(schedule, SimulationCosts{}, stuck);
  for (const Action& action : stuck)
    problems.push_back(
        describe(action) + " waits forever: the ranks wait for each other");
  return problems;
}

std::vector<std::string> validate(const Schedule& schedule) {
  Problems problems = validate_computation(schedule);
  if (!problems.empty())
    return problems;
  check_reductions(schedule, problems);
  rehearse(schedule, problems);
  return problems;
}

}  // namespace brigade
