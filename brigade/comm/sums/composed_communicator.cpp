#include "brigade/comm/sums/composed_communicator.h"

#include <fmt/format.h>

#include <string>

#include "brigade/base/hash.h"
#include "brigade/base/units.h"
#include "brigade/comm/sums/bf16_all_reduce.h"
#include "brigade/comm/sums/row_all_reduce.h"

namespace brigade {
namespace {

using torch::Tensor;

// The thread that waits for a reduce-scatter adds the received chunks. Above
// this size the worker adds them at once, so that the chunks of only one bucket
// of gradients exist, not those of all under way.
constexpr int64_t kAddedByWaiting = 4 * MiB;

// The most memory that is kept for them: enough for a bucket, but not for the
// activations of long sequences.
constexpr int64_t kLargestBuffer = 64 * MiB;

// A tensor [rows, sum.numel()] of sum's type, in `buffer` unless it is too
// large for it. glibc before 2.38 may not reuse freed memory of the same size
// for aligned memory, so that a process would grow with each bucket.
Tensor received_like(const Tensor& sum, int64_t rows, Tensor& buffer) {
  const int64_t numel = rows * sum.numel();
  const int64_t bytes = numel * static_cast<int64_t>(sum.element_size());
  if (bytes > kLargestBuffer)
    return torch::empty({rows, sum.numel()}, sum.options());
  if (!buffer.defined() || buffer.numel() < bytes)
    buffer = torch::empty({bytes}, torch::kByte);
  return buffer.narrow(0, 0, bytes)
      .view(sum.scalar_type())
      .view({rows, sum.numel()});
}

// Views R * n elements as [R, n].
torch::Tensor as_chunks(const torch::Tensor& tensor, int size) {
  return tensor.detach().view({size, tensor.numel() / size});
}

void gather(
    const GroupMessages& messages,
    const torch::Tensor& output,
    const torch::Tensor& input) {
  const auto chunks = as_chunks(output, messages.size());
  const auto own = chunks[messages.rank()];
  if (own.data_ptr() != input.data_ptr())
    own.copy_(input.view({-1}));
  gather_chunks(messages, MessageKind::kExchange, chunks.unbind()).wait();
}

// The rows of each rank; if `rows` is empty, equal parts of all elements.
std::vector<Tensor> parts_by_rank(
    const Tensor& tensor,
    const std::vector<int64_t>& rows,
    int size) {
  if (rows.empty())
    return as_chunks(tensor, size).unbind();
  return tensor.detach().split_with_sizes(rows);
}

}  // namespace

torch::Tensor as_bytes(const torch::Tensor& tensor) {
  return torch::from_blob(
      tensor.data_ptr(),
      {tensor.numel() * tensor.element_size()},
      [tensor](void*) {},
      torch::kByte);
}

ComposedCommunicator::ComposedCommunicator(
    const StorePtr& store,
    CommunicatorOptions options,
    GroupMessages messages,
    Waiting waiting)
    : Communicator(messages.rank(), messages.size(), std::move(options)),
      messages_(std::move(messages)),
      failures_(std::make_shared<GroupFailures>(
          store,
          this->options(),
          messages_.rank(),
          messages_)),
      waiting_(waiting),
      worker_(std::make_shared<SequentialWorker>()) {}

GroupMessages ComposedCommunicator::with_tag_of(
    const std::string& operation) const {
  const auto tags =
      static_cast<uint64_t>(messages_.tags() - kFirstTagOfCollectives);
  return messages_.with_tag(
      kFirstTagOfCollectives + static_cast<int>(fnv1a_64(operation) % tags));
}

GroupMessages ComposedCommunicator::messages_of(Record record) const {
  return with_tag_of(to_string(record));
}

GroupMessages ComposedCommunicator::messages_of(Record record, int64_t rows)
    const {
  return with_tag_of(fmt::format("{} rows of {}", rows, to_string(record)));
}

WorkPtr ComposedCommunicator::received_and_added(
    Record record,
    const Tensor& sum,
    int64_t rows,
    std::function<void(const Tensor&)> receive,
    std::function<void(const Tensor&)> add) {
  if (static_cast<int64_t>(sum.nbytes()) * rows > kAddedByWaiting)
    return composed(record, [receive, add, sum, rows, buffer = buffer_] {
      const Tensor others = received_like(sum, rows, *buffer);
      receive(others);
      add(others);
    });
  const auto others = torch::empty({rows, sum.numel()}, sum.options());
  return composed(
      record,
      [receive, others] { receive(others); },
      [add, others] { add(others); });
}

WorkPtr ComposedCommunicator::sum_by_messages(
    const torch::Tensor& tensor,
    Record record) {
  if (size() != 2)
    return sum_by_owners(equal_chunks(tensor, size()), record);
  // With two ranks each sends its whole tensor: as many bytes, but in one round
  // instead of two.
  return received_and_added(
      record,
      tensor,
      1,
      [messages = messages_of(record), tensor](const Tensor& other) {
        PendingMessages exchange(messages, MessageKind::kExchange);
        exchange.receive(other, 1 - messages.rank());
        exchange.send(tensor, 1 - messages.rank());
        exchange.wait();
      },
      [tensor](const Tensor& other) { add_chunks(tensor, tensor, other); });
}

WorkPtr ComposedCommunicator::sum_by_owners(
    std::vector<torch::Tensor> chunks,
    Record record) {
  return composed(
      record, [messages = messages_of(record), chunks = std::move(chunks)] {
        sum_in_chunks(messages, chunks);
      });
}

WorkPtr ComposedCommunicator::do_all_reduce_rows(
    torch::Tensor matrix,
    Record record) {
  return composed(record, [messages = messages_of(record), matrix] {
    return sum_rows(messages, matrix);
  });
}

WorkPtr ComposedCommunicator::do_all_reduce_as_bf16(
    torch::Tensor tensor,
    Record record) {
  if (tensor.numel() % size() != 0)
    return Communicator::do_all_reduce_as_bf16(tensor, record);
  const auto sum = guarded(record, [&] {
    return std::make_shared<Bf16AllReduce>(messages_of(record), tensor);
  });
  return composed(record, [sum] { sum->finish(); });
}

WorkPtr ComposedCommunicator::do_reduce_scatter(
    torch::Tensor output,
    torch::Tensor input,
    Record record) {
  const auto chunks = as_chunks(input, size());
  return received_and_added(
      record,
      output,
      size() - 1,
      [messages = messages_of(record), chunks](const Tensor& others) {
        scatter_chunks(messages, MessageKind::kExchange, chunks, others).wait();
      },
      [sum = output.view({-1}), own = chunks[rank()]](const Tensor& others) {
        add_chunks(sum, own, others);
      });
}

WorkPtr ComposedCommunicator::do_all_gather(
    torch::Tensor output,
    torch::Tensor input,
    Record record) {
  return composed(record, [messages = messages_of(record), output, input] {
    gather(messages, output, input);
  });
}

WorkPtr ComposedCommunicator::do_send(
    torch::Tensor tensor,
    int destination,
    int tag,
    Record record) {
  return message(record, tag, [&](PendingMessages& message) {
    message.send(tensor, destination);
  });
}

WorkPtr ComposedCommunicator::do_recv(
    torch::Tensor tensor,
    int source,
    int tag,
    Record record) {
  return message(record, tag, [&](PendingMessages& message) {
    message.receive(tensor, source);
  });
}

WorkPtr ComposedCommunicator::do_all_to_all(
    torch::Tensor output,
    torch::Tensor input,
    const RowSplits& splits,
    Record record) {
  auto received = parts_by_rank(output, splits.output, size());
  auto sent = parts_by_rank(input, splits.input, size());
  const auto messages_with = [&](const Tensor& rows) {
    return splits.is_even() ? messages_of(record)
                            : messages_of(record, rows.size(0));
  };
  // A message's tag depends on its rows, so each peer needs its own
  // GroupMessages.
  struct Peer {
    int rank;
    GroupMessages to;
    GroupMessages from;
  };
  std::vector<Peer> peers;
  for (int shift = 1; shift < size(); ++shift) {
    const int peer = (rank() + shift) % size();
    const auto at = static_cast<size_t>(peer);
    peers.push_back(
        {peer, messages_with(sent[at]), messages_with(received[at])});
  }
  return composed(record, [peers, received, sent, own = rank()] {
    const auto at = static_cast<size_t>(own);
    if (received[at].data_ptr() != sent[at].data_ptr())
      Tensor(received[at]).copy_(sent[at]);
    std::vector<PendingMessages> pending;
    for (const Peer& peer : peers) {
      const auto i = static_cast<size_t>(peer.rank);
      if (received[i].numel() > 0)
        pending.emplace_back(peer.from, MessageKind::kExchange)
            .receive(received[i], peer.rank);
    }
    for (const Peer& peer : peers) {
      const auto i = static_cast<size_t>(peer.rank);
      if (sent[i].numel() > 0)
        pending.emplace_back(peer.to, MessageKind::kExchange)
            .send(sent[i], peer.rank);
    }
    for (PendingMessages& messages : pending)
      messages.wait();
  });
}

void ComposedCommunicator::gather_signatures(
    const torch::Tensor& all,
    const torch::Tensor& mine,
    Record record) {
  composed(
      record,
      [messages = messages_.with_tag(kTagOfSignatures), all, mine] {
        gather(messages, all, mine);
      })
      ->wait();
}

}  // namespace brigade
