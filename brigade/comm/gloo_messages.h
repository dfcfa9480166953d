// Messages between the ranks of a Gloo group, each way over a connection of its
// own; for the files of comm/ only.
//
// Who sends writes to the socket and holds the connection meanwhile. Gloo's I/O
// thread cannot read then: it asks for what has come again and again, on a
// processor that somebody computes on, and a receive that is to be launched
// waits for a message that is being read. So messages to higher ranks and to
// lower ones go apart. c10d opens as many connections between two ranks as it
// is given devices, and takes one by the message's tag.
#pragma once

#include <torch/types.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace brigade {

using C10dWorkPtr = c10::intrusive_ptr<c10d::Work>;

// Messages of one kind between two ranks are matched by tag and, within one,
// by order. A kind belongs to one thread of each rank.
enum class MessageKind {
  kOfUsers,   // Communicator::send() and recv()
  kExchange,  // of collectives in one exchange
  kParts,     // of the sum of bf16 in slices: before it is added
  kSums,      // and after
};

// Messages that did not come or go; whose they are.
class LostMessages : public std::runtime_error {
 public:
  LostMessages(const std::string& why, std::vector<int> peers);

  const std::vector<int>& peers() const { return peers_; }

 private:
  std::vector<int> peers_;
};

class GlooMessages {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

  // Devices to give the group: this many times the same.
  static constexpr int kConnections = 2;

  explicit GlooMessages(GroupPtr group);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Closes this rank's connections in both directions, so that ranks waiting
  // for it fail at once. (After a timeout Gloo closes those of one direction
  // only.) Returns the ranks that had closed theirs before: they failed too, or
  // are lost. Later calls close nothing and return the same. Any thread.
  std::vector<int> close() const;

 private:
  friend class PendingMessages;

  struct Closing;

  GroupPtr group_;
  int rank_;
  int size_;
  std::shared_ptr<Closing> closing_;
};

// Messages under way together. Tensors are contiguous, in memory, and may be
// empty; they may not change until wait() returns.
class PendingMessages {
 public:
  PendingMessages(const GlooMessages& messages, MessageKind kind);
  // A message ends once: no copies.
  PendingMessages(PendingMessages&&) = default;
  PendingMessages& operator=(PendingMessages&&) = default;
  PendingMessages(const PendingMessages&) = delete;
  PendingMessages& operator=(const PendingMessages&) = delete;

  void receive(const torch::Tensor& into, int from, int tag = 0);
  void send(const torch::Tensor& from, int to, int tag = 0);

  // Until all have come and gone. Where one does not, here and above: closes
  // the connections and throws LostMessages.
  void wait();

 private:
  struct Message {
    C10dWorkPtr work;
    int peer;
  };

  GlooMessages messages_;
  MessageKind kind_;
  std::vector<Message> pending_;
};

}  // namespace brigade
