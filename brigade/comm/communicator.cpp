#include "brigade/comm/communicator.h"

#include <fmt/format.h>
#include <fmt/ostream.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/any_tensor.h"
#include "brigade/comm/launched_work.h"
#include "brigade/comm/signature.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

// The same memory without autograd's node. A Work's tensors are released by a
// thread of the backend; a node that holds the communicator would make that
// thread destroy, and join, itself. It has its own version counter, so that a
// collective does not raise the tensor's, by which callers notice that somebody
// else wrote it; c10d's collectives do not either.
torch::Tensor outside_graph(const torch::Tensor& tensor) {
  return tensor.variable_data();
}

// Checks a call. A call that no group can execute is the caller's mistake,
// found before anything is sent.
template <typename... Values>
void check_call(
    bool is_valid,
    fmt::format_string<const Values&...> text,
    const Values&... values) {
  if (!is_valid)
    throw UsageError("[comm] " + fmt::format(text, values...));
}

void check_dense(
    Collective op,
    const torch::Tensor& tensor,
    const std::string& group) {
  check_call(
      tensor.defined(),
      "{} of an undefined tensor in group '{}': give every rank a tensor",
      to_string(op),
      group);
  check_call(
      tensor.layout() == torch::kStrided,
      "{} of a {} tensor in group '{}': it takes dense ones; call to_dense()",
      to_string(op),
      fmt::streamed(tensor.layout()),
      group);
}

// Checks the operands of a collective from one tensor to another; `fits` says
// whether one has as many elements as the other asks for.
void check_operands(
    Collective op,
    const torch::Tensor& output,
    const torch::Tensor& input,
    bool fits,
    const Communicator& group) {
  check_dense(op, output, group.name());
  check_dense(op, input, group.name());
  check_call(
      fits && input.scalar_type() == output.scalar_type(),
      "{} from {} to {} elements over {} ranks, or of unlike dtypes",
      to_string(op),
      input.numel(),
      output.numel(),
      group.size());
}

}  // namespace

CommunicatorOptions unobserved(CommunicatorOptions options) {
  options.check_collectives = false;
  options.flight_recorder = nullptr;
  return options;
}

Communicator::Communicator(int rank, int size, CommunicatorOptions options)
    : rank_(rank), size_(size), options_(std::move(options)) {
  check_call(
      rank >= 0 && rank < size,
      "rank {} is not in group '{}' of {}",
      rank,
      options_.name,
      size);
  if (options_.members.empty()) {
    options_.members.resize(static_cast<size_t>(size));
    std::iota(options_.members.begin(), options_.members.end(), 0);
  }
  check_call(
      static_cast<int>(options_.members.size()) == size,
      "group '{}' of {} ranks was given {} members",
      options_.name,
      size,
      options_.members.size());
  if (options_.flight_recorder && size > 1) {
    flight_group_ = options_.flight_recorder->add_group(
        {.name = options_.name,
         .members = options_.members,
         .member_names = options_.member_names});
  }
}

int64_t Communicator::note(
    const CollectiveRecord& record,
    int64_t shared_number) {
  if (flight_group_ < 0)
    return -1;
  return options_.flight_recorder->begin(
      {.group = flight_group_,
       .kind = to_string(record.op),
       .dtype = c10::toString(record.dtype),
       .numel = record.numel,
       .sequence_number = shared_number,
       .peer = record.peer < 0
                   ? -1
                   : options_.members[static_cast<size_t>(record.peer)],
       .launched_ns = record.launched_ns});
}

CollectiveRecord Communicator::record_of(
    Collective op,
    const torch::Tensor& tensor,
    int peer) const {
  check_dense(op, tensor, name());
  check_call(
      tensor.is_contiguous(),
      "{} in group '{}' needs a contiguous tensor; call contiguous()",
      to_string(op),
      name());
  const bool is_message = is_point_to_point(op);
  const bool has_peer = is_message || op == Collective::kBroadcast;
  check_call(
      !has_peer || (peer >= 0 && peer < size_),
      "{} with rank {} in group '{}' of {} ranks",
      to_string(op),
      peer,
      name(),
      size_);
  check_call(
      !is_message || peer != rank_ || size_ == 1,
      "{} with rank {} in group '{}' of {} ranks is a message of this rank to "
      "itself; copy the tensor",
      to_string(op),
      peer,
      name(),
      size_);
  check_call(
      tensor.device().is_cpu() || tensor.device() == options_.device,
      "{} of a tensor on {} in group '{}', which was made for tensors on {}",
      to_string(op),
      fmt::streamed(tensor.device()),
      name(),
      fmt::streamed(options_.device));
  CollectiveRecord record;
  record.op = op;
  record.peer = peer;
  record.dtype = tensor.scalar_type();
  record.numel = tensor.numel();
  record.bytes = static_cast<int64_t>(tensor.nbytes());
  return record;
}

CollectiveRecord
Communicator::begin(Collective op, const torch::Tensor& tensor, int peer) {
  return begin(record_of(op, tensor, peer));
}

CollectiveRecord Communicator::begin(
    CollectiveRecord record,
    const RowSplits& splits) {
  // Counts launches; collectives have a number of their own below.
  record.sequence_number = sequence_number_++;
  record.launched_ns = steady_now_ns();
  if (is_point_to_point(record.op)) {
    record.flight_id = note(record, messages_[{record.op, record.peer}]++);
    return record;
  }
  // Members send to and receive from different peers, but share collectives.
  record.sequence_number = collectives_++;
  record.flight_id = note(record, record.sequence_number);
  if (!options_.check_collectives || size_ == 1)
    return record;
  try {
    if (record.flight_id >= 0)
      options_.flight_recorder->set_awaited(record.flight_id, true);
    check_same_call(record, splits);
    if (record.flight_id >= 0) {
      options_.flight_recorder->set_awaited(record.flight_id, false);
      options_.flight_recorder->waited(record.launched_ns);
    }
  } catch (...) {
    if (record.flight_id >= 0)
      options_.flight_recorder->failed(record.flight_id);
    throw;
  }
  return record;
}

void Communicator::check_same_call(
    const CollectiveRecord& record,
    const RowSplits& splits) {
  const auto gathered = [&](const torch::Tensor& mine) {
    auto all = torch::empty({size_, mine.numel()}, torch::kLong);
    gather_signatures(all, mine, record);
    return all;
  };
  const auto mine = signature_of(record);
  check_signatures(gathered(mine), mine, name());
  if (!splits.is_even())
    check_splits(gathered(signature_of(splits)), record, name());
}

void Communicator::gather_signatures(
    const torch::Tensor& all,
    const torch::Tensor& mine,
    const CollectiveRecord& record) {
  do_all_gather(all, mine, record)->wait_on_host();
}

template <typename Launch>
WorkPtr Communicator::launched(
    const CollectiveRecord& record,
    const Launch& launch) {
  // With nothing to move the backend is not called (Gloo divides by the size).
  const bool is_empty = record.numel == 0 && record.op != Collective::kBarrier;
  WorkPtr work;
  try {
    work = is_empty ? make_completed_work() : launch();
  } catch (...) {
    if (record.flight_id >= 0)
      options_.flight_recorder->failed(record.flight_id);
    throw;
  }
  if (options_.max_records > 0) {
    if (static_cast<int64_t>(records_.size()) == options_.max_records)
      records_.pop_front();
    records_.push_back(record);
  }
  if (record.flight_id < 0)
    return work;
  options_.flight_recorder->launched(record.flight_id, work);
  return std::make_shared<LaunchedWork>(
      std::move(work), options_.flight_recorder, record.flight_id);
}

WorkPtr Communicator::all_reduce(torch::Tensor tensor, ReduceOp op) {
  const auto record = begin(Collective::kAllReduce, tensor, -1);
  return launched(
      record, [&] { return do_all_reduce(outside_graph(tensor), op, record); });
}

WorkPtr Communicator::all_reduce_as_bf16(torch::Tensor tensor) {
  check_dense(Collective::kAllReduce, tensor, name());
  check_call(
      tensor.scalar_type() == torch::kFloat && tensor.is_contiguous(),
      "all_reduce_as_bf16 in group '{}' needs a contiguous float32 tensor",
      name());
  CollectiveRecord shape;
  shape.op = Collective::kAllReduce;
  shape.dtype = torch::kBFloat16;
  shape.numel = tensor.numel();
  shape.bytes = 2 * tensor.numel();
  const auto record = begin(shape);
  return launched(record, [&] {
    return do_all_reduce_as_bf16(outside_graph(tensor), record);
  });
}

WorkPtr Communicator::do_all_reduce_as_bf16(
    torch::Tensor tensor,
    const CollectiveRecord& record) {
  const torch::NoGradGuard no_grad;
  auto wire = tensor.to(torch::kBFloat16);
  auto reduction = do_all_reduce(wire, ReduceOp::kSum, record);
  return join_works(
      {.works = {std::move(reduction)},
       .then =
           [wire, tensor]() mutable {
             const AnyTensorMode any_tensor;
             tensor.copy_(wire);
           },
       .device = tensor.device(),
       .reduced_bytes = {}});
}

WorkPtr Communicator::all_reduce_rows(torch::Tensor matrix) {
  check_dense(Collective::kAllReduceRows, matrix, name());
  const auto dtype = matrix.scalar_type();
  check_call(
      matrix.dim() == 2 && (dtype == torch::kFloat || dtype == torch::kDouble),
      "all_reduce_rows in group '{}' of {} dims of {}",
      name(),
      matrix.dim(),
      c10::toString(dtype));
  const auto record = begin(Collective::kAllReduceRows, matrix, -1);
  return launched(record, [&] {
    return do_all_reduce_rows(outside_graph(matrix), record);
  });
}

WorkPtr Communicator::do_all_reduce_rows(
    torch::Tensor matrix,
    const CollectiveRecord& record) {
  return do_all_reduce(std::move(matrix), ReduceOp::kSum, record);
}

WorkPtr Communicator::reduce_scatter(
    torch::Tensor output,
    torch::Tensor input) {
  check_operands(
      Collective::kReduceScatter,
      output,
      input,
      input.numel() == output.numel() * size_,
      *this);
  const auto record = begin(Collective::kReduceScatter, input, -1);
  return launched(record, [&] {
    return do_reduce_scatter(
        outside_graph(output), outside_graph(input), record);
  });
}

WorkPtr Communicator::all_gather(torch::Tensor output, torch::Tensor input) {
  check_operands(
      Collective::kAllGather,
      output,
      input,
      output.numel() == input.numel() * size_,
      *this);
  const auto record = begin(Collective::kAllGather, output, -1);
  return launched(record, [&] {
    return do_all_gather(outside_graph(output), outside_graph(input), record);
  });
}

WorkPtr Communicator::broadcast(torch::Tensor tensor, int root) {
  const auto record = begin(Collective::kBroadcast, tensor, root);
  return launched(record, [&] {
    return do_broadcast(outside_graph(tensor), root, record);
  });
}

WorkPtr Communicator::all_to_all(torch::Tensor output, torch::Tensor input) {
  check_operands(
      Collective::kAllToAll,
      output,
      input,
      output.numel() == input.numel() && input.numel() % size_ == 0,
      *this);
  const auto record = begin(Collective::kAllToAll, input, -1);
  return launched(record, [&] {
    return do_all_to_all(
        outside_graph(output), outside_graph(input), {}, record);
  });
}

WorkPtr Communicator::all_to_all_single(
    torch::Tensor output,
    torch::Tensor input,
    const RowSplits& splits) {
  if (splits.is_even())
    return all_to_all(std::move(output), std::move(input));
  const auto check_side = [&](const char* side,
                              const torch::Tensor& tensor,
                              const std::vector<int64_t>& rows) {
    check_dense(Collective::kAllToAllSingle, tensor, name());
    check_call(
        tensor.dim() >= 1 && tensor.is_contiguous() &&
            static_cast<int>(rows.size()) == size_ &&
            std::all_of(
                rows.begin(), rows.end(), [](int64_t n) { return n >= 0; }) &&
            std::accumulate(rows.begin(), rows.end(), int64_t{0}) ==
                tensor.size(0),
        "all_to_all_single in group '{}' of {} ranks: {} splits {} must be one "
        "number of rows per rank, not negative, that add up to the rows of a "
        "contiguous tensor, which has {}",
        name(),
        size_,
        side,
        rows,
        tensor.dim() == 0 ? 0 : tensor.size(0));
  };
  check_side("output", output, splits.output);
  check_side("input", input, splits.input);
  check_call(
      input.sizes().slice(1) == output.sizes().slice(1) &&
          input.scalar_type() == output.scalar_type() &&
          input.device() == output.device(),
      "all_to_all_single in group '{}' from rows of another shape, dtype or "
      "device than those of its output",
      name());
  auto shape = record_of(Collective::kAllToAllSingle, input, -1);
  shape.bytes = static_cast<int64_t>(std::max(input.nbytes(), output.nbytes()));
  shape.numel = c10::multiply_integers(input.sizes().slice(1));
  const auto record = begin(shape, splits);
  return launched(record, [&] {
    return do_all_to_all(
        outside_graph(output), outside_graph(input), splits, record);
  });
}

WorkPtr Communicator::send(torch::Tensor tensor, int destination, int tag) {
  const auto record = begin(Collective::kSend, tensor, destination);
  return launched(record, [&] {
    return do_send(outside_graph(tensor), destination, tag, record);
  });
}

WorkPtr Communicator::recv(torch::Tensor tensor, int source, int tag) {
  const auto record = begin(Collective::kRecv, tensor, source);
  return launched(record, [&] {
    return do_recv(outside_graph(tensor), source, tag, record);
  });
}

WorkPtr Communicator::exchange(const MessagePair& pair) {
  if (pair.received.numel() == 0)
    return send(pair.sent, pair.destination, pair.tag);
  if (pair.sent.numel() == 0)
    return recv(pair.received, pair.source, pair.tag);
  MessagePair outside = pair;
  outside.sent = outside_graph(pair.sent);
  outside.received = outside_graph(pair.received);
  // Both are checked before either is under way.
  auto recv = record_of(Collective::kRecv, pair.received, pair.source);
  auto send = record_of(Collective::kSend, pair.sent, pair.destination);
  recv = begin(recv);
  send = begin(send);
  const auto work =
      launched(send, [&] { return do_exchange(outside, send, recv); });
  return launched(recv, [&] { return work; });
}

WorkPtr Communicator::do_exchange(
    const MessagePair& pair,
    const CollectiveRecord& send,
    const CollectiveRecord& recv) {
  auto received = do_recv(pair.received, pair.source, pair.tag, recv);
  auto sent = do_send(pair.sent, pair.destination, pair.tag, send);
  return join_works({.works = {std::move(received), std::move(sent)}});
}

void Communicator::barrier() {
  const auto record = begin(CollectiveRecord{.op = Collective::kBarrier});
  launched(record, [&] { return do_barrier(record); })->wait_on_host();
}

}  // namespace brigade
