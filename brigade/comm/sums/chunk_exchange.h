// Messages of tensors in R chunks, the i-th of them rank i's: sent from where
// they lie and received where they belong, one message per peer. Collectives
// are composed of these functions. Used by the files of comm/ only.
//
//   exchange_with_peers  any tensor to and from each peer: an all-to-all
//   scatter_chunks       every rank gets its chunk of each other rank
//   add_chunks           their sum: a reduce-scatter
//   gather_chunks        every rank gets all ranks' own chunks: an all-gather
//   sum_in_chunks        the last three, slice by slice: an all-reduce
//
// Costs a rank, n elements per chunk: n sent and as many received.
#pragma once

#include <torch/types.h>

#include <memory>
#include <vector>

#include "brigade/comm/sums/group_messages.h"

namespace brigade {

// Messages under way together. Tensors are contiguous, in host memory, and may
// be empty; they may not change until wait() returns.
class PendingMessages {
 public:
  PendingMessages(const GroupMessages& messages, MessageKind kind);
  // Not copyable, because a message ends once.
  PendingMessages(PendingMessages&&) = default;
  PendingMessages& operator=(PendingMessages&&) = default;
  PendingMessages(const PendingMessages&) = delete;
  PendingMessages& operator=(const PendingMessages&) = delete;

  void receive(const torch::Tensor& into, int from);
  void send(const torch::Tensor& from, int to);

  // Waits until all have been sent and received. If one fails, here or above,
  // closes the group's messages and throws LostMessages.
  void wait();

 private:
  struct Message {
    std::unique_ptr<MessageInFlight> under_way;
    int peer;
  };

  GroupMessages messages_;
  MessageKind kind_;
  std::vector<Message> pending_;
};

// Launches a message to and one from each other rank. received(peer) and
// sent(peer) return their tensors, which may not change until the messages have
// ended. For a tensor without elements neither end has a message.
template <typename Received, typename Sent>
PendingMessages exchange_with_peers(
    const GroupMessages& messages,
    MessageKind kind,
    const Received& received,
    const Sent& sent) {
  const int rank = messages.rank();
  const int size = messages.size();
  PendingMessages pending(messages, kind);
  for (int shift = 1; shift < size; ++shift) {
    const int source = (rank + size - shift) % size;
    const torch::Tensor into = received(source);
    if (into.numel() > 0)
      pending.receive(into, source);
  }
  for (int shift = 1; shift < size; ++shift) {
    const int destination = (rank + shift) % size;
    const torch::Tensor from = sent(destination);
    if (from.numel() > 0)
      pending.send(from, destination);
  }
  return pending;
}

// The index of a peer among the ranks other than `rank`.
inline int row_of_peer(int peer, int rank) {
  return peer < rank ? peer : peer - 1;
}

// The tensor's elements in R equal chunks; the last ones may be shorter, or
// empty.
std::vector<torch::Tensor> equal_chunks(const torch::Tensor& tensor, int size);

// chunks: [R, n]; into: [R - 1, n], the others' chunks for this rank, in rank
// order.
PendingMessages scatter_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& chunks,
    const torch::Tensor& into);

// R tensors whose sizes all ranks agree on, of which this rank's is sent and
// the others' are received.
PendingMessages gather_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const std::vector<torch::Tensor>& chunks);

// sum = own + others[0] + others[1] + ..., the same order for every element;
// 16-bit floats in float32, rounded once. sum, own: of one shape with n
// elements, the same memory or apart; others: [R - 1, n].
void add_chunks(
    const torch::Tensor& sum,
    const torch::Tensor& own,
    const torch::Tensor& others);

// Replaces the chunks, one per rank, by their sums over the ranks, with the
// same bits on all of them. Each is added by its owner, in slices: the messages
// of the next slice are under way while one is added. Memory: 2 slices.
// Blocks; must be called on the thread of MessageKind::kParts and kSums, by all
// ranks in the same order. Passes on the transport's exceptions.
void sum_in_chunks(
    const GroupMessages& messages,
    const std::vector<torch::Tensor>& chunks);

}  // namespace brigade
