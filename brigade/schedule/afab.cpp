#include "brigade/schedule/afab.h"

namespace brigade {

Schedule make_afab(int ranks, int micro_batches) {
  Schedule schedule{
      "afab", ranks, 1, micro_batches, Passes::kForwardAndBackward, {}};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.per_rank.emplace_back();
    for (int k = 0; k < micro_batches; ++k)
      actions.push_back({ActionKind::kForward, rank, k});
    for (int k = 0; k < micro_batches; ++k)
      actions.push_back({ActionKind::kBackward, rank, k});
  }
  return schedule;
}

}  // namespace brigade
