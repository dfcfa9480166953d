#include "brigade/context_parallel/ring_exchange.h"

#include <utility>

#include "brigade/base/check.h"

namespace brigade {

using torch::Tensor;

RingExchange::RingExchange(CommunicatorPtr ring, int tag)
    : ring_(std::move(ring)), tag_(tag) {}

void RingExchange::start(Tensor block) {
  BRIGADE_ASSERT(!send_, "an exchange is under way already");
  outgoing_ = std::move(block);
  incoming_ = spare_.defined() ? std::exchange(spare_, Tensor())
                               : torch::empty_like(outgoing_);
  const int size = ring_->size();
  const int next = (ring_->rank() + 1) % size;
  const int previous = (ring_->rank() + size - 1) % size;
  // Backends that carry out a rank's messages one after the other would wait
  // for ever if every rank sent first; odd ranks receive first.
  if (ring_->rank() % 2 == 0) {
    send_ = ring_->send(outgoing_, next, tag_);
    recv_ = ring_->recv(incoming_, previous, tag_);
  } else {
    recv_ = ring_->recv(incoming_, previous, tag_);
    send_ = ring_->send(outgoing_, next, tag_);
  }
}

Tensor RingExchange::finish() {
  BRIGADE_ASSERT(send_ != nullptr, "no exchange is under way");
  std::exchange(recv_, nullptr)->wait();
  std::exchange(send_, nullptr)->wait();
  spare_ = std::exchange(outgoing_, Tensor());
  return std::exchange(incoming_, Tensor());
}

}  // namespace brigade
