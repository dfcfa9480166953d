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

class GlooMessages {
 public:
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

  // Devices to give the group: this many times the same.
  static constexpr int kConnections = 2;

  explicit GlooMessages(GroupPtr group);

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  friend class PendingMessages;

  GroupPtr group_;
  int rank_;
  int size_;
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

  // Until all have come and gone. c10d's exceptions pass, here and above.
  void wait();

 private:
  GlooMessages messages_;
  MessageKind kind_;
  std::vector<C10dWorkPtr> pending_;
};

}  // namespace brigade
