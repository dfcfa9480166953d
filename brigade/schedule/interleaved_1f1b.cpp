#include "brigade/schedule/interleaved_1f1b.h"

#include <algorithm>
#include <utility>

namespace brigade {
namespace {

// (chunk, micro-batch) in the order in which every rank runs its forwards;
// chunk c of rank r is stage c * ranks + r.
std::vector<std::pair<int, int>>
forward_order(int ranks, int virtual_stages, int micro_batches) {
  const int rounds = std::max(1, micro_batches / ranks);
  std::vector<std::pair<int, int>> order;
  int first = 0;
  for (int round = 0; round < rounds; ++round) {
    // The larger rounds come first.
    const int size =
        micro_batches / rounds + (round < micro_batches % rounds ? 1 : 0);
    for (int chunk = 0; chunk < virtual_stages; ++chunk) {
      for (int k = 0; k < size; ++k)
        order.emplace_back(chunk, first + k);
    }
    first += size;
  }
  return order;
}

}  // namespace

Schedule
make_interleaved_1f1b(int ranks, int virtual_stages, int micro_batches) {
  Schedule schedule{"interleaved_1f1b", ranks, virtual_stages, micro_batches};
  const auto order = forward_order(ranks, virtual_stages, micro_batches);
  const auto count = static_cast<int>(order.size());
  const int rounds = std::max(1, micro_batches / ranks);
  const int round_size = (micro_batches + rounds - 1) / rounds;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.per_rank.emplace_back();
    const auto forward = [&](int i) {
      const auto& [chunk, micro_batch] = order[static_cast<size_t>(i)];
      actions.push_back(
          {ActionKind::kForward, chunk * ranks + rank, micro_batch});
    };
    const auto backward = [&](int i) {
      const auto& [chunk, micro_batch] = order[static_cast<size_t>(i)];
      actions.push_back(
          {ActionKind::kBackward,
           (virtual_stages - 1 - chunk) * ranks + rank,
           micro_batch});
    };
    // All chunks but the last, and twice the distance to the last rank: one
    // way for the activation, one for the gradient.
    const int warmup = std::min(
        (virtual_stages - 1) * round_size + 2 * (ranks - 1 - rank), count);
    for (int i = 0; i < warmup; ++i)
      forward(i);
    for (int i = 0; i < count; ++i) {
      if (warmup + i < count)
        forward(warmup + i);
      backward(i);
    }
  }
  return schedule;
}

Schedule make_forward_only(int ranks, int virtual_stages, int micro_batches) {
  Schedule schedule{
      "forward_only",
      ranks,
      virtual_stages,
      micro_batches,
      Passes::kForwardOnly};
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<Action>& actions = schedule.per_rank.emplace_back();
    for (const auto& [chunk, micro_batch] :
         forward_order(ranks, virtual_stages, micro_batches))
      actions.push_back(
          {ActionKind::kForward, chunk * ranks + rank, micro_batch});
  }
  return schedule;
}

}  // namespace brigade
