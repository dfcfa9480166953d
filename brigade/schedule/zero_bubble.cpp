#include "brigade/schedule/zero_bubble.h"

#include <algorithm>

namespace brigade {

Schedule make_zero_bubble(int ranks, int micro_batches) {
  Schedule schedule{
      "zero_bubble", ranks, 1, micro_batches, Passes::kForwardAndBackward, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.per_rank.emplace_back();
    const int warmup = std::min(ranks - 1 - rank, micro_batches);
    const int lag = std::min(rank, micro_batches);
    for (int k = 0; k < warmup; ++k)
      actions.push_back({ActionKind::kForward, rank, k});
    for (int k = 0; k < micro_batches; ++k) {
      if (warmup + k < micro_batches)
        actions.push_back({ActionKind::kForward, rank, warmup + k});
      actions.push_back({ActionKind::kBackwardInput, rank, k});
      if (k >= lag)
        actions.push_back({ActionKind::kBackwardWeight, rank, k - lag});
    }
    for (int k = micro_batches - lag; k < micro_batches; ++k)
      actions.push_back({ActionKind::kBackwardWeight, rank, k});
  }
  return schedule;
}

}  // namespace brigade
