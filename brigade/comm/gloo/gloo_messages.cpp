#include "brigade/comm/gloo/gloo_messages.h"

#include <fmt/format.h>

#include <chrono>
#include <limits>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

namespace brigade {
namespace {

// The shortest timeout: for c10d a timeout of zero means the group's own.
constexpr std::chrono::milliseconds kAtOnce{1};

constexpr int kTags =
    std::numeric_limits<int>::max() / (kMessageKinds * kGlooConnections);

int tag_on_wire(MessageKind kind, int tag, bool is_upward) {
  if (tag < 0 || tag >= kTags)
    throw std::out_of_range(
        fmt::format("the tag {} is not in [0, {})", tag, kTags));
  // c10d chooses the connection by the tag modulo their number.
  return (tag * kMessageKinds + static_cast<int>(kind)) * kGlooConnections +
         (is_upward ? 0 : 1);
}

// Whether it is Gloo's error for a connection that this rank closed after a
// timeout.
bool was_closed_here(const std::exception& error) {
  return std::string_view(error.what()).find("Application timeout") !=
         std::string_view::npos;
}

class GlooMessage : public MessageInFlight {
 public:
  explicit GlooMessage(C10dWorkPtr work) : work_(std::move(work)) {}

  void wait() override { work_->wait(); }
  void wait_at_once() override { work_->wait(kAtOnce); }

 private:
  C10dWorkPtr work_;
};

class GlooTransport : public MessageTransport {
 public:
  explicit GlooTransport(GlooGroupPtr group)
      : group_(std::move(group)),
        rank_(group_->getRank()),
        size_(group_->getSize()) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int tags() const override { return kTags; }

  std::unique_ptr<MessageInFlight> receive(
      const torch::Tensor& into,
      int from,
      MessageKind kind,
      int tag) override {
    const int wire_tag = tag_on_wire(kind, tag, rank_ > from);
    std::vector<torch::Tensor> tensors{into};
    return std::make_unique<GlooMessage>(group_->recv(tensors, from, wire_tag));
  }

  std::unique_ptr<MessageInFlight>
  send(const torch::Tensor& from, int to, MessageKind kind, int tag) override {
    const int wire_tag = tag_on_wire(kind, tag, to > rank_);
    std::vector<torch::Tensor> tensors{from};
    return std::make_unique<GlooMessage>(group_->send(tensors, to, wire_tag));
  }

  std::vector<int> close() override;

 private:
  GlooGroupPtr group_;
  int rank_;
  int size_;
  std::mutex closing_;
  bool is_closed_ = false;
  std::vector<int> closed_before_;
};

std::vector<int> GlooTransport::close() {
  const std::lock_guard lock(closing_);
  if (is_closed_)
    return closed_before_;
  is_closed_ = true;
  // A receive without a sender fails at once if the connection is closed
  // already. If not, it times out, which closes the connections to all ranks.
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
  closed_before_.assign(closed_before.begin(), closed_before.end());
  return closed_before_;
}

}  // namespace

std::shared_ptr<MessageTransport> make_gloo_messages(GlooGroupPtr group) {
  return std::make_shared<GlooTransport>(std::move(group));
}

}  // namespace brigade
