#include "brigade/context_parallel/ring_exchange.h"

#include <utility>

#include "brigade/base/check.h"

namespace brigade {

using torch::Tensor;

RingExchange::RingExchange(
    CommunicatorPtr ring,
    int tag,
    RingDirection direction)
    : ring_(std::move(ring)), tag_(tag) {
  const int size = ring_->size();
  const int next = (ring_->rank() + 1) % size;
  const int previous = (ring_->rank() + size - 1) % size;
  destination_ = direction == RingDirection::kUp ? next : previous;
  source_ = direction == RingDirection::kUp ? previous : next;
}

void RingExchange::expect(
    const std::vector<int64_t>& sizes,
    const torch::TensorOptions& options) {
  BRIGADE_ASSERT(!incoming_.defined(), "a block is expected already");
  const bool fits = spare_.defined() && spare_.sizes() == sizes &&
                    spare_.dtype() == options.dtype();
  incoming_ =
      fits ? std::exchange(spare_, Tensor()) : torch::empty(sizes, options);
  if (incoming_.numel() > 0 && !ring_->is_ordered())
    recv_ = ring_->recv(incoming_, source_, tag_);
}

void RingExchange::start(Tensor block) {
  BRIGADE_ASSERT(!outgoing_.defined(), "an exchange is under way already");
  outgoing_ = std::move(block);
  if (ring_->is_ordered()) {
    BRIGADE_ASSERT(incoming_.defined(), "no block is expected");
    if (outgoing_.numel() + incoming_.numel() > 0)
      send_ =
          ring_->exchange({outgoing_, destination_, incoming_, source_, tag_});
  } else if (outgoing_.numel() > 0) {
    send_ = ring_->send(outgoing_, destination_, tag_);
  }
}

Tensor RingExchange::finish() {
  BRIGADE_ASSERT(
      incoming_.defined() && outgoing_.defined(), "no exchange is under way");
  if (recv_)
    std::exchange(recv_, nullptr)->wait();
  if (send_)
    std::exchange(send_, nullptr)->wait();
  spare_ = std::exchange(outgoing_, Tensor());
  return std::exchange(incoming_, Tensor());
}

}  // namespace brigade
