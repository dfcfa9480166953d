#include "brigade/comm/sums/group_messages.h"

#include <set>
#include <utility>

namespace brigade {

LostMessages::LostMessages(const std::string& why, std::vector<int> peers)
    : std::runtime_error(why), peers_(std::move(peers)) {}

PendingMessages::PendingMessages(
    const GroupMessages& messages,
    MessageKind kind)
    : messages_(messages), kind_(kind) {}

void PendingMessages::receive(const torch::Tensor& into, int from) {
  try {
    pending_.push_back(
        {messages_.transport_->receive(into, from, kind_, messages_.tag_),
         from});
  } catch (const std::out_of_range&) {
    throw;  // the caller's tag
  } catch (const std::exception& error) {
    messages_.close();
    throw LostMessages(error.what(), {from});
  }
}

void PendingMessages::send(const torch::Tensor& from, int to) {
  try {
    pending_.push_back(
        {messages_.transport_->send(from, to, kind_, messages_.tag_), to});
  } catch (const std::out_of_range&) {
    throw;
  } catch (const std::exception& error) {
    messages_.close();
    throw LostMessages(error.what(), {to});
  }
}

void PendingMessages::wait() {
  for (size_t i = 0; i < pending_.size(); ++i) {
    try {
      pending_[i].under_way->wait();
    } catch (const std::exception& error) {
      messages_.close();
      // The rest has come and gone by now, or never will.
      std::set<int> peers{pending_[i].peer};
      for (size_t rest = i + 1; rest < pending_.size(); ++rest) {
        try {
          pending_[rest].under_way->wait_at_once();
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
