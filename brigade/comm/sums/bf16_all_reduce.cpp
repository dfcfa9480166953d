#include "brigade/comm/sums/bf16_all_reduce.h"

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/comm/sums/bf16_wire.h"

namespace brigade {
namespace {

constexpr int64_t kSliceElements = 1 << 20;  // a message of 2 MiB

}  // namespace

Bf16AllReduce::Bf16AllReduce(
    const GroupMessages& messages,
    torch::Tensor values)
    : messages_(messages),
      rank_(messages.rank()),
      size_(messages.size()),
      chunk_(values.numel() / size_),
      values_(std::move(values)),
      wire_(torch::empty({size_, chunk_}, torch::kBFloat16)),
      received_(torch::empty({size_ - 1, chunk_}, torch::kBFloat16)) {
  BRIGADE_ASSERT(
      chunk_ * size_ == values_.numel(),
      "{} values do not divide by {} ranks",
      values_.numel(),
      size_);
  for (int64_t begin = 0; begin < chunk_; begin += kSliceElements) {
    Slice slice{
        begin,
        std::min(kSliceElements, chunk_ - begin),
        PendingMessages(messages_, MessageKind::kParts)};
    slice.pending = exchange_with_peers(
        messages_,
        MessageKind::kParts,
        [&](int peer) {
          return received_[row_of_peer(peer, rank_)].narrow(
              0, begin, slice.count);
        },
        [&](int peer) {
          const torch::Tensor part = on_wire(peer, slice);
          narrow_to_bf16(
              values_.data_ptr<float>() + peer * chunk_ + begin,
              bf16_bits(part),
              slice.count);
          return part;
        });
    slices_.push_back(std::move(slice));
  }
}

void Bf16AllReduce::finish() {
  for (Slice& slice : slices_) {
    slice.pending.wait();
    const torch::Tensor sum = on_wire(rank_, slice);
    add_bf16_rows(
        values_.data_ptr<float>() + rank_ * chunk_ + slice.begin,
        bf16_bits(sum),
        {bf16_bits(received_) + slice.begin, size_ - 1, chunk_},
        slice.count);
    slice.pending = exchange_with_peers(
        messages_,
        MessageKind::kSums,
        [&](int peer) { return on_wire(peer, slice); },
        [&](int) { return sum; });
  }
  for (Slice& slice : slices_) {
    slice.pending.wait();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_)
        widen_from_bf16(
            bf16_bits(on_wire(peer, slice)),
            values_.data_ptr<float>() + peer * chunk_ + slice.begin,
            slice.count);
    }
  }
}

torch::Tensor Bf16AllReduce::on_wire(int owner, const Slice& slice) const {
  return wire_[owner].narrow(0, slice.begin, slice.count);
}

}  // namespace brigade
