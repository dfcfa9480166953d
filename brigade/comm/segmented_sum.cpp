#include "brigade/comm/segmented_sum.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <utility>

#include "brigade/base/check.h"

namespace brigade {
namespace {

template <typename T>
void add_elements(T* sum, const T* others, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    sum[i] = static_cast<T>(sum[i] + others[i]);
}

template <typename T>
void add_typed(const torch::Tensor& sum, const torch::Tensor& others) {
  add_elements(sum.data_ptr<T>(), others.data_ptr<T>(), sum.numel());
}

void add_segment(const torch::Tensor& sum, const torch::Tensor& others) {
  switch (sum.scalar_type()) {
    case torch::kFloat:
      return add_typed<float>(sum, others);
    case torch::kDouble:
      return add_typed<double>(sum, others);
    case torch::kInt:
      return add_typed<int32_t>(sum, others);
    case torch::kLong:
      return add_typed<int64_t>(sum, others);
    default:
      BRIGADE_ASSERT(
          false, "no segments of {}", c10::toString(sum.scalar_type()));
  }
}

// One sum under way.
class SegmentedSum {
 public:
  SegmentedSum(
      const GroupMessages& messages,
      const torch::Tensor& tensor,
      int64_t segment_numel)
      : messages_(messages),
        rank_(messages.rank()),
        size_(messages.size()),
        flat_(tensor.view({-1})),
        segment_numel_(
            std::min(segment_numel, (tensor.numel() + size_ - 1) / size_)) {
    for (torch::Tensor& buffer : buffers_)
      buffer = torch::empty({size_ - 1, segment_numel_}, tensor.options());
  }

  void run() {
    const int64_t longest = (flat_.numel() + size_ - 1) / size_;
    const int64_t segments = (longest + segment_numel_ - 1) / segment_numel_;
    PendingMessages next = launch_parts(0);
    std::deque<PendingMessages> sums;
    for (int64_t i = 0; i < segments; ++i) {
      PendingMessages parts = std::move(next);
      next = i + 1 < segments ? launch_parts(i + 1)
                              : PendingMessages(messages_, MessageKind::kParts);
      // What is sent away here, a sum may replace from now on.
      parts.wait();
      const torch::Tensor own = segment_of(rank_, i);
      for (int peer = 0, row = 0; peer < size_; ++peer) {
        if (peer != rank_)
          add_segment(own, received(i, row++, own.numel()));
      }
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
  // The index-th segment of a rank's chunk, perhaps empty.
  torch::Tensor segment_of(int owner, int64_t index) const {
    const int64_t chunk_begin = flat_.numel() * owner / size_;
    const int64_t chunk_end = flat_.numel() * (owner + 1) / size_;
    const int64_t begin =
        std::min(chunk_begin + index * segment_numel_, chunk_end);
    return flat_.narrow(0, begin, std::min(segment_numel_, chunk_end - begin));
  }

  // Where the row-th of the others' parts of this rank's segment arrives.
  torch::Tensor received(int64_t index, int row, int64_t numel) const {
    return buffers_[static_cast<size_t>(index % 2)][row].narrow(0, 0, numel);
  }

  PendingMessages launch_parts(int64_t index) const {
    PendingMessages parts(messages_, MessageKind::kParts);
    const int64_t own = segment_of(rank_, index).numel();
    for (int shift = 1; own > 0 && shift < size_; ++shift) {
      const int peer = (rank_ + size_ - shift) % size_;
      parts.receive(received(index, peer < rank_ ? peer : peer - 1, own), peer);
    }
    for (int shift = 1; shift < size_; ++shift) {
      const int peer = (rank_ + shift) % size_;
      const torch::Tensor part = segment_of(peer, index);
      if (part.numel() > 0)
        parts.send(part, peer);
    }
    return parts;
  }

  PendingMessages launch_sums(int64_t index) const {
    PendingMessages sums(messages_, MessageKind::kSums);
    for (int shift = 1; shift < size_; ++shift) {
      const int peer = (rank_ + size_ - shift) % size_;
      const torch::Tensor sum = segment_of(peer, index);
      if (sum.numel() > 0)
        sums.receive(sum, peer);
    }
    const torch::Tensor own = segment_of(rank_, index);
    for (int shift = 1; own.numel() > 0 && shift < size_; ++shift)
      sums.send(own, (rank_ + shift) % size_);
    return sums;
  }

  GroupMessages messages_;
  int rank_;
  int size_;
  torch::Tensor flat_;
  int64_t segment_numel_;
  std::array<torch::Tensor, 2> buffers_;  // [R - 1, segment], in turns
};

}  // namespace

bool sums_in_segments(torch::ScalarType dtype) {
  return dtype == torch::kFloat || dtype == torch::kDouble ||
         dtype == torch::kInt || dtype == torch::kLong;
}

void sum_in_segments(
    const GroupMessages& messages,
    const torch::Tensor& tensor,
    int64_t segment_bytes) {
  const auto element = static_cast<int64_t>(tensor.element_size());
  // The same segments on all ranks, whose chunks differ by one element.
  SegmentedSum(messages, tensor, std::max<int64_t>(1, segment_bytes / element))
      .run();
}

}  // namespace brigade
