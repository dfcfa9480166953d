#include "brigade/schedule/schedule.h"

#include <algorithm>
#include <tuple>

#include "brigade/base/check.h"
#include "brigade/schedule/simulator.h"

namespace brigade {
namespace {

// An action with its place in the order that all ranks share.
struct PlacedAction {
  double time = 0;  // computation: its start; transfer: its producer's end
  Action action;
  Action producer;  // of a transfer
};

// Transfers stand before the computation that starts when they are ready, and
// among themselves by their producer, which both ends know.
auto shared_place(const PlacedAction& placed) {
  return std::make_tuple(
      placed.time,
      is_computation(placed.action.kind),
      static_cast<int>(placed.producer.kind),
      placed.producer.stage,
      placed.producer.micro_batch);
}

// What the stage next in the tensor's way receives, or nothing (kind kForward)
// where it is the pipeline's end.
struct Transfer {
  Action send;
  Action recv;
};

bool transfer_after(
    const Schedule& schedule,
    const Action& producer,
    Transfer& transfer) {
  const int stage = producer.stage;
  const int micro_batch = producer.micro_batch;
  int to = 0;
  switch (producer.kind) {
    case ActionKind::kForward:
      to = stage + 1;
      transfer = {
          {ActionKind::kSendActivation, stage, micro_batch},
          {ActionKind::kRecvActivation, to, micro_batch}};
      break;
    case ActionKind::kBackward:
    case ActionKind::kBackwardInput:
      to = stage - 1;
      transfer = {
          {ActionKind::kSendGradient, stage, micro_batch},
          {ActionKind::kRecvGradient, to, micro_batch}};
      break;
    default:
      return false;
  }
  return to >= 0 && to < schedule.stages() &&
         schedule.rank_of(to) != schedule.rank_of(stage);
}

// Moves each receive up by one computation, but past no transfer with the
// same peer: the two ends of a pair must keep one order.
void post_receives_early(
    const Schedule& schedule,
    std::vector<Action>& actions) {
  for (size_t i = 0; i < actions.size(); ++i) {
    if (!is_communication(actions[i].kind) || is_send(actions[i].kind))
      continue;
    const int peer = peer_of(schedule, actions[i]);
    size_t place = i;
    while (place > 0) {
      const Action& before = actions[place - 1];
      if (is_communication(before.kind) && peer_of(schedule, before) == peer)
        break;
      --place;
      if (is_computation(before.kind))
        break;
    }
    std::rotate(
        actions.begin() + static_cast<std::ptrdiff_t>(place),
        actions.begin() + static_cast<std::ptrdiff_t>(i),
        actions.begin() + static_cast<std::ptrdiff_t>(i + 1));
  }
}

void insert_reductions(std::vector<Action>& actions, int stages) {
  std::vector<std::ptrdiff_t> last(static_cast<size_t>(stages), -1);
  for (size_t i = 0; i < actions.size(); ++i) {
    if (actions[i].kind == ActionKind::kBackward ||
        actions[i].kind == ActionKind::kBackwardWeight)
      last[static_cast<size_t>(actions[i].stage)] =
          static_cast<std::ptrdiff_t>(i);
  }
  std::vector<Action> result;
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const Action reduce{ActionKind::kReduceGradients, action.stage, 0};
    const bool is_last = is_computation(action.kind) &&
                         last[static_cast<size_t>(action.stage)] ==
                             static_cast<std::ptrdiff_t>(i);
    if (is_last && action.kind == ActionKind::kBackward)
      result.push_back(reduce);
    result.push_back(action);
    if (is_last && action.kind == ActionKind::kBackwardWeight)
      result.push_back(reduce);
  }
  actions = std::move(result);
}

}  // namespace

int peer_of(const Schedule& schedule, const Action& action) {
  switch (action.kind) {
    case ActionKind::kSendActivation:
    case ActionKind::kRecvGradient:
      return schedule.rank_of(action.stage + 1);
    case ActionKind::kRecvActivation:
    case ActionKind::kSendGradient:
      return schedule.rank_of(action.stage - 1 + schedule.ranks);
    default:
      BRIGADE_ASSERT(false, "{} has no peer", describe(action));
      return -1;
  }
}

Schedule add_communication(Schedule schedule) {
  const Simulation clock = simulate(schedule, SimulationCosts{});
  std::vector<std::vector<PlacedAction>> placed(schedule.per_rank.size());
  for (size_t rank = 0; rank < placed.size(); ++rank) {
    for (const TimedAction& timed : clock.per_rank[rank]) {
      placed[rank].push_back({timed.start, timed.action, timed.action});
      Transfer transfer;
      if (!transfer_after(schedule, timed.action, transfer))
        continue;
      const auto receiver =
          static_cast<size_t>(schedule.rank_of(transfer.recv.stage));
      placed[rank].push_back({timed.end, transfer.send, timed.action});
      placed[receiver].push_back({timed.end, transfer.recv, timed.action});
    }
  }
  for (size_t rank = 0; rank < placed.size(); ++rank) {
    std::ranges::sort(placed[rank], {}, shared_place);
    std::vector<Action>& actions = schedule.per_rank[rank];
    actions.clear();
    for (const PlacedAction& one : placed[rank])
      actions.push_back(one.action);
    post_receives_early(schedule, actions);
    if (schedule.passes == Passes::kForwardAndBackward)
      insert_reductions(actions, schedule.stages());
  }
  return schedule;
}

}  // namespace brigade
