#include "brigade/schedule/one_f_one_b.h"

#include <algorithm>
#include <utility>

namespace brigade {
namespace {

// The rank's first forwards, which fill the pipeline.
int warmup_of(int rank, int ranks, int micro_batches) {
  return std::min(ranks - 1 - rank, micro_batches);
}

// A forward, as long as there are any, and a backward in turns.
void add_in_turns(
    int rank,
    int warmup,
    int micro_batches,
    std::vector<Action>& actions) {
  for (int k = 0; k < warmup; ++k)
    actions.push_back({ActionKind::kForward, rank, k});
  for (int k = 0; k < micro_batches; ++k) {
    if (warmup + k < micro_batches)
      actions.push_back({ActionKind::kForward, rank, warmup + k});
    actions.push_back({ActionKind::kBackward, rank, k});
  }
}

}  // namespace

Schedule make_afab(int ranks, int micro_batches) {
  Schedule schedule{"afab", ranks, 1, micro_batches};
  for (int rank = 0; rank < ranks; ++rank)
    add_in_turns(
        rank, micro_batches, micro_batches, schedule.per_rank.emplace_back());
  return schedule;
}

Schedule make_one_f_one_b(int ranks, int micro_batches) {
  Schedule schedule{"1f1b", ranks, 1, micro_batches};
  for (int rank = 0; rank < ranks; ++rank)
    add_in_turns(
        rank,
        warmup_of(rank, ranks, micro_batches),
        micro_batches,
        schedule.per_rank.emplace_back());
  return schedule;
}

// Each backward of 1F1B in its halves.
Schedule make_zero_bubble(int ranks, int micro_batches) {
  Schedule schedule = make_one_f_one_b(ranks, micro_batches);
  schedule.name = "zero_bubble";
  for (int rank = 0; rank < ranks; ++rank) {
    const int lag = std::min(rank, micro_batches);
    std::vector<Action> actions;
    for (const Action& action : schedule.per_rank[static_cast<size_t>(rank)]) {
      if (action.kind != ActionKind::kBackward) {
        actions.push_back(action);
        continue;
      }
      actions.push_back({ActionKind::kBackwardInput, rank, action.micro_batch});
      if (action.micro_batch >= lag)
        actions.push_back(
            {ActionKind::kBackwardWeight, rank, action.micro_batch - lag});
    }
    for (int k = micro_batches - lag; k < micro_batches; ++k)
      actions.push_back({ActionKind::kBackwardWeight, rank, k});
    schedule.per_rank[static_cast<size_t>(rank)] = std::move(actions);
  }
  return schedule;
}

}  // namespace brigade
