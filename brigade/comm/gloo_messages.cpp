#include "brigade/comm/gloo_messages.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace brigade {
namespace {

constexpr int kKinds = 4;

// Of receives that nobody sends to; collectives take the tag 0.
constexpr int kTagOfClosing = 1;

// Long enough for c10d, for which none at all means the group's.
constexpr std::chrono::milliseconds kAtOnce{1};

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

// What Gloo says of a connection that this rank closed after a timeout.
bool was_closed_here(const std::exception& error) {
  return std::string_view(error.what()).find("Application timeout") !=
         std::string_view::npos;
}

}  // namespace

LostMessages::LostMessages(const std::string& why, std::vector<int> peers)
    : std::runtime_error(why), peers_(std::move(peers)) {}

struct GlooMessages::Closing {
  std::mutex mutex;
  bool is_over = false;
  std::vector<int> closed_before;
};

GlooMessages::GlooMessages(GroupPtr group)
    : group_(std::move(group)),
      rank_(group_->getRank()),
      size_(group_->getSize()),
      closing_(std::make_shared<Closing>()) {}

std::vector<int> GlooMessages::close() const {
  const std::lock_guard lock(closing_->mutex);
  if (closing_->is_over)
    return closing_->closed_before;
  closing_->is_over = true;
  // A receive fails at once where the connection is closed already. Where it is
  // not, one that times out closes those to all ranks.
  std::vector<torch::Tensor> nothing{torch::empty({1}, torch::kByte)};
  std::set<int> closed_before;
  std::vector<C10dWorkPtr> never;
  for (const bool is_upward : {true, false}) {
    const int tag =
        tag_on_wire(MessageKind::kExchange, kTagOfClosing, is_upward);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_)
        continue;
      try {
        never.push_back(group_->recv(nothing, peer, tag));
      } catch (const std::exception& error) {
        if (!was_closed_here(error))
          closed_before.insert(peer);
      }
    }
  }
  for (const C10dWorkPtr& receive : never) {
    try {
      receive->wait(kAtOnce);
    } catch (const std::exception&) {
    }
  }
  closing_->closed_before.assign(closed_before.begin(), closed_before.end());
  return closing_->closed_before;
}

PendingMessages::PendingMessages(const GlooMessages& messages, MessageKind kind)
    : messages_(messages), kind_(kind) {}

void PendingMessages::receive(const torch::Tensor& into, int from, int tag) {
  const int wire_tag = tag_on_wire(kind_, tag, messages_.rank() > from);
  std::vector<torch::Tensor> tensors{into};
  try {
    pending_.push_back({messages_.group_->recv(tensors, from, wire_tag), from});
  } catch (const std::exception& error) {
    messages_.close();
    throw LostMessages(error.what(), {from});
  }
}

void PendingMessages::send(const torch::Tensor& from, int to, int tag) {
  const int wire_tag = tag_on_wire(kind_, tag, to > messages_.rank());
  std::vector<torch::Tensor> tensors{from};
  try {
    pending_.push_back({messages_.group_->send(tensors, to, wire_tag), to});
  } catch (const std::exception& error) {
    messages_.close();
    throw LostMessages(error.what(), {to});
  }
}

void PendingMessages::wait() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    try {
      pending_[i].work->wait();
    } catch (const std::exception& error) {
      messages_.close();
      // The rest has come and gone by now, or never will.
      std::set<int> peers{pending_[i].peer};
      for (size_t rest = i + 1; rest < pending_.size(); ++rest) {
        try {
          pending_[rest].work->wait(kAtOnce);
        } catch (const std::exception&) {
          peers.insert(pending_[rest].peer);
        }
      }
      throw LostMessages(error.what(), {peers.begin(), peers.end()});
    }
  }
  pending_.clear();
}

}  // namespace brigade
