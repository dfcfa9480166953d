// sum_in_chunks() of chunk_exchange.h.
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>

#include "brigade/comm/sums/chunk_exchange.h"

namespace brigade {
namespace {

// Each slice costs a rank two waits for its peers. All that it receives from
// them for one slice stays below kSliceBytesOfPeers.
constexpr int64_t kSliceBytes = 4 << 20;
constexpr int64_t kSliceBytesOfPeers = 16 << 20;

template <typename T>
void add_rows_to(const torch::Tensor& sum, const torch::Tensor& others) {
  T* const to = sum.data_ptr<T>();
  const int64_t count = sum.numel();
  for (int64_t row = 0; row < others.size(0); ++row) {
    const T* const from = others[row].data_ptr<T>();
    for (int64_t i = 0; i < count; ++i)
      to[i] = static_cast<T>(to[i] + from[i]);
  }
}

// sum += others[0] + ..., as add_chunks(); common types use plain loops,
// because libtorch's threads may be computing.
void add_slice(const torch::Tensor& sum, const torch::Tensor& others) {
  switch (sum.scalar_type()) {
    case torch::kFloat:
      return add_rows_to<float>(sum, others);
    case torch::kDouble:
      return add_rows_to<double>(sum, others);
    case torch::kInt:
      return add_rows_to<int32_t>(sum, others);
    case torch::kLong:
      return add_rows_to<int64_t>(sum, others);
    default:
      return add_chunks(sum, sum, others);
  }
}

// One sum under way.
class SlicedSum {
 public:
  SlicedSum(
      const GroupMessages& messages,
      const std::vector<torch::Tensor>& chunks)
      : messages_(messages),
        rank_(messages.rank()),
        size_(messages.size()),
        chunks_(chunks) {
    for (const torch::Tensor& chunk : chunks)
      longest_ = std::max(longest_, chunk.numel());
    // Slices are the same on all ranks, although chunks may differ in length.
    const auto element = static_cast<int64_t>(chunks.front().element_size());
    const int64_t bytes =
        std::min(kSliceBytes, kSliceBytesOfPeers / (size_ - 1));
    slice_numel_ = std::min(std::max<int64_t>(1, bytes / element), longest_);
  }

  void run() {
    if (longest_ == 0)
      return;
    const int64_t slices = (longest_ + slice_numel_ - 1) / slice_numel_;
    PendingMessages next = launch_parts(0);
    std::deque<PendingMessages> sums;
    for (int64_t i = 0; i < slices; ++i) {
      PendingMessages parts = std::move(next);
      next = i + 1 < slices ? launch_parts(i + 1)
                            : PendingMessages(messages_, MessageKind::kParts);
      // From here on a sum may replace the values that were sent.
      parts.wait();
      const torch::Tensor own = slice_of(rank_, i);
      if (own.numel() > 0)
        add_slice(own, received(i));
      sums.push_back(launch_sums(i));
      if (sums.size() > 2) {
        sums.front().wait();
        sums.pop_front();
      }
    }
    for (PendingMessages& messages : sums)
      messages.wait();
  }

 private:
  // The index-th slice of a rank's chunk, perhaps empty.
  torch::Tensor slice_of(int owner, int64_t index) const {
    const torch::Tensor& chunk = chunks_[static_cast<size_t>(owner)];
    const int64_t begin = std::min(index * slice_numel_, chunk.numel());
    return chunk.narrow(
        0, begin, std::min(slice_numel_, chunk.numel() - begin));
  }

  // [R - 1, n]: the buffer for the others' parts of this rank's slice.
  torch::Tensor received(int64_t index) {
    torch::Tensor& buffer = buffers_[static_cast<size_t>(index % 2)];
    const torch::Tensor own = slice_of(rank_, index);
    if (!buffer.defined())
      buffer = torch::empty({(size_ - 1) * slice_numel_}, own.options());
    return buffer.narrow(0, 0, (size_ - 1) * own.numel())
        .view({size_ - 1, own.numel()});
  }

  PendingMessages launch_parts(int64_t index) {
    const torch::Tensor parts = received(index);
    return exchange_with_peers(
        messages_,
        MessageKind::kParts,
        [&](int peer) { return parts[row_of_peer(peer, rank_)]; },
        [&](int peer) { return slice_of(peer, index); });
  }

  PendingMessages launch_sums(int64_t index) const {
    return exchange_with_peers(
        messages_,
        MessageKind::kSums,
        [&](int peer) { return slice_of(peer, index); },
        [&](int) { return slice_of(rank_, index); });
  }

  GroupMessages messages_;
  int rank_;
  int size_;
  std::vector<torch::Tensor> chunks_;
  int64_t longest_ = 0;
  int64_t slice_numel_ = 0;
  std::array<torch::Tensor, 2> buffers_;  // of R - 1 slices each, used in turns
};

}  // namespace

void sum_in_chunks(
    const GroupMessages& messages,
    const std::vector<torch::Tensor>& chunks) {
  SlicedSum(messages, chunks).run();
}

}  // namespace brigade
