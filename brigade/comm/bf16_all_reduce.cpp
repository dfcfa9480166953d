#include "brigade/comm/bf16_all_reduce.h"

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/comm/bf16_bits.h"
#include "brigade/comm/bf16_wire.h"

namespace brigade {
namespace {

constexpr int64_t kSliceElements = 1 << 20;  // 2 MiB on the wire
constexpr int kPartsTag = 1;
constexpr int kSumsTag = 2;

}  // namespace

Bf16AllReduce::Bf16AllReduce(GroupPtr group, torch::Tensor values)
    : group_(std::move(group)),
      rank_(group_->getRank()),
      size_(group_->getSize()),
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
    Slice slice{begin, std::min(kSliceElements, chunk_ - begin), {}};
    for (int peer = 0, row = 0; peer < size_; ++peer) {
      if (peer != rank_)
        receive(
            received_[row++].narrow(0, begin, slice.count),
            peer,
            kPartsTag,
            slice);
    }
    for (int shift = 1; shift < size_; ++shift) {
      const int peer = (rank_ + shift) % size_;
      const torch::Tensor part = on_wire(peer, slice);
      narrow_to_bf16(
          values_.data_ptr<float>() + peer * chunk_ + begin,
          bf16_bits(part),
          slice.count);
      send(part, peer, kPartsTag, slice);
    }
    slices_.push_back(std::move(slice));
  }
}

void Bf16AllReduce::finish() {
  for (Slice& slice : slices_) {
    wait(slice);
    const torch::Tensor sum = on_wire(rank_, slice);
    add_bf16_rows(
        values_.data_ptr<float>() + rank_ * chunk_ + slice.begin,
        bf16_bits(sum),
        {bf16_bits(received_) + slice.begin,
         size_ - 1,
         chunk_,
         /*left_out=*/-1},
        slice.count);
    for (int shift = 1; shift < size_; ++shift) {
      const int peer = (rank_ + size_ - shift) % size_;
      receive(on_wire(peer, slice), peer, kSumsTag, slice);
    }
    for (int shift = 1; shift < size_; ++shift)
      send(sum, (rank_ + shift) % size_, kSumsTag, slice);
  }
  for (Slice& slice : slices_) {
    wait(slice);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_)
        widen_from_bf16(
            bf16_bits(on_wire(peer, slice)),
            values_.data_ptr<float>() + peer * chunk_ + slice.begin,
            slice.count);
    }
  }
}

void Bf16AllReduce::send(
    const torch::Tensor& from,
    int to,
    int tag,
    Slice& slice) {
  std::vector<torch::Tensor> tensors{from};
  slice.messages.push_back(group_->send(tensors, to, tag));
}

void Bf16AllReduce::receive(
    torch::Tensor into,
    int from,
    int tag,
    Slice& slice) {
  std::vector<torch::Tensor> tensors{std::move(into)};
  slice.messages.push_back(group_->recv(tensors, from, tag));
}

void Bf16AllReduce::wait(Slice& slice) {
  for (const C10dWorkPtr& message : slice.messages)
    message->wait();
  slice.messages.clear();
}

torch::Tensor Bf16AllReduce::on_wire(int owner, const Slice& slice) const {
  return wire_[owner].narrow(0, slice.begin, slice.count);
}

}  // namespace brigade
