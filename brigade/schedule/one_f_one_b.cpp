#include "brigade/schedule/one_f_one_b.h"

#include <algorithm>

namespace brigade {

Schedule make_one_f_one_b(int ranks, int micro_batches) {
  Schedule schedule{
      "1f1b", ranks, 1, micro_batches, Passes::kForwardAndBackward, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.per_rank.emplace_back();
    const int warmup = std::min(ranks - 1 - rank, micro_batches);
    for (int k = 0; k < warmup; ++k)
      actions.push_back({ActionKind::kForward, rank, k});
    for (int k = 0; k < micro_batches; ++k) {
      if (warmup + k < micro_batches)
        actions.push_back({ActionKind::kForward, rank, warmup + k});
      actions.push_back({ActionKind::kBackward, rank, k});
    }
  }
  return schedule;
}

}  // namespace brigade
