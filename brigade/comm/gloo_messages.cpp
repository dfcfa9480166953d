#include "brigade/comm/gloo_messages.h"

#include <fmt/format.h>

#include <limits>
#include <stdexcept>
#include <utility>

namespace brigade {
namespace {

constexpr int kKinds = 4;

int tag_on_wire(MessageKind kind, int tag, bool is_upward) {
  constexpr int kTags =
      std::numeric_limits<int>::max() / (kKinds * GlooMessages::kConnections);
  if (tag < 0 || tag >= kTags)
    throw std::out_of_range(
        fmt::format("the tag {} is not in [0, {})", tag, kTags));
  // c10d takes the connection that is the tag modulo their number.
  return (tag * kKinds + static_cast<int>(kind)) * GlooMessages::kConnections +
         (is_upward ? 0 : 1);
}

}  // namespace

GlooMessages::GlooMessages(GroupPtr group)
    : group_(std::move(group)),
      rank_(group_->getRank()),
      size_(group_->getSize()) {}

PendingMessages::PendingMessages(const GlooMessages& messages, MessageKind kind)
    : messages_(messages), kind_(kind) {}

void PendingMessages::receive(const torch::Tensor& into, int from, int tag) {
  std::vector<torch::Tensor> tensors{into};
  pending_.push_back(messages_.group_->recv(
      tensors, from, tag_on_wire(kind_, tag, messages_.rank() > from)));
}

void PendingMessages::send(const torch::Tensor& from, int to, int tag) {
  std::vector<torch::Tensor> tensors{from};
  pending_.push_back(messages_.group_->send(
      tensors, to, tag_on_wire(kind_, tag, to > messages_.rank())));
}

void PendingMessages::wait() {
  for (const C10dWorkPtr& message : pending_)
    message->wait();
  pending_.clear();
}

}  // namespace brigade
