#include "brigade/comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/comm/any_tensor.h"
#include "brigade/comm/device_stream.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

// The same memory without autograd's node. A Work's tensors are released by a
// thread of the backend; a node among them that holds the communicator would
// make that thread destroy, and join, itself. And without its version counter,
// by which callers tell whether somebody else wrote: a collective is not that,
// as with c10d.
torch::Tensor outside_graph(const torch::Tensor& tensor) {
  return tensor.variable_data();
}

// A call that no group can carry out. It is the caller's mistake, found before
// anything is sent.
template <typename... Values>
void check_call(
    bool is_valid,
    fmt::format_string<const Values&...> text,
    const Values&... values) {
  if (!is_valid)
    throw Error(
        ExitCode::kUnexpected, "[comm] " + fmt::format(text, values...));
}

}  // namespace

const char* to_string(Collective op) {
  switch (op) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllReduceRows:
      return "all_reduce_rows";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kSend:
      return "send";
    case Collective::kRecv:
      return "recv";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

std::string to_string(const CollectiveRecord& record) {
  std::string text = fmt::format(
      "{} #{} of {} x {}",
      to_string(record.op),
      record.sequence_number,
      record.numel,
      c10::toString(record.dtype));
  if (record.peer >= 0)
    text += fmt::format(" with rank {}", record.peer);
  return text;
}

namespace {

class CompletedWork : public Work {
 public:
  CompletedWork() : finished_ns_(steady_now_ns()) {}
  void wait() override {}
  bool is_completed() override { return true; }
  int64_t finished_ns() override { return finished_ns_; }

 private:
  int64_t finished_ns_;
};

// What a stream of the launching thread holds.
class QueuedWork : public Work {
 public:
  explicit QueuedWork(torch::Device device)
      : mark_(StreamMark::timed(device)) {}
  void wait() override { mark_.wait(); }
  void wait_on_host() override { mark_.wait_on_host(); }
  bool is_completed() override { return mark_.is_reached(); }
  int64_t finished_ns() override { return mark_.reached_ns(); }

 private:
  StreamMark mark_;
};

// The two messages of an exchange.
class PairWork : public Work {
 public:
  PairWork(WorkPtr first, WorkPtr second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void wait() override {
    first_->wait();
    second_->wait();
  }
  void wait_on_host() override {
    first_->wait_on_host();
    second_->wait_on_host();
  }
  bool is_completed() override {
    return first_->is_completed() && second_->is_completed();
  }
  int64_t finished_ns() override {
    const int64_t first = first_->finished_ns();
    const int64_t second = second_->finished_ns();
    return first == 0 || second == 0 ? 0 : std::max(first, second);
  }

 private:
  WorkPtr first_;
  WorkPtr second_;
};

// The waiting thread widens the bf16 sum back into its tensor.
class WidenedWork : public Work {
 public:
  WidenedWork(WorkPtr inner, torch::Tensor wire, torch::Tensor tensor)
      : inner_(std::move(inner)),
        wire_(std::move(wire)),
        tensor_(std::move(tensor)) {}

  void wait() override {
    if (!wire_.defined())
      return;
    inner_->wait();
    const AnyTensorMode any_tensor;
    tensor_.copy_(wire_);
    wire_.reset();
  }
  void wait_on_host() override {
    wait();
    StreamMark::of_current_stream(tensor_.device()).wait_on_host();
  }
  bool is_completed() override { return inner_->is_completed(); }
  int64_t finished_ns() override { return inner_->finished_ns(); }

 private:
  WorkPtr inner_;
  torch::Tensor wire_;
  torch::Tensor tensor_;
};

}  // namespace

namespace {

// Tells the flight recorder how its operation ended, as its waiters see it.
class RecordedWork : public Work {
 public:
  RecordedWork(WorkPtr inner, FlightRecorderPtr recorder, int64_t id)
      : inner_(std::move(inner)), recorder_(std::move(recorder)), id_(id) {}

  void wait() override {
    const int64_t begun_ns = begin_wait();
    guarded([&] { inner_->wait(); });
    if (inner_->is_completed())
      recorder_->finished(id_, begun_ns);
    else
      recorder_->ordered(id_, inner_);
  }
  void wait_on_host() override {
    const int64_t begun_ns = begin_wait();
    guarded([&] { inner_->wait_on_host(); });
    recorder_->finished(id_, begun_ns);
  }
  bool is_completed() override { return inner_->is_completed(); }
  int64_t finished_ns() override { return inner_->finished_ns(); }
  std::optional<int64_t> reduced_bytes() override {
    return inner_->reduced_bytes();
  }

 private:
  int64_t begin_wait() {
    recorder_->set_awaited(id_, true);
    return steady_now_ns();
  }

  template <typename Wait>
  void guarded(const Wait& wait) {
    try {
      wait();
    } catch (...) {
      recorder_->failed(id_);
      throw;
    }
  }

  WorkPtr inner_;
  FlightRecorderPtr recorder_;
  int64_t id_;
};

}  // namespace

namespace {

// What records() keep of a Work: its end. The Work itself would keep its
// tensors alive, as long as the record: the weights that were broadcast when a
// module was wrapped, say.
class NotedEnd : public Work {
 public:
  explicit NotedEnd(const WorkPtr& work) : work_(work) {}

  void note(int64_t finished_ns) {
    if (finished_ns != 0)
      finished_ns_.store(finished_ns);
  }
  void wait() override {}  // nobody does
  bool is_completed() override { return finished_ns() != 0; }
  int64_t finished_ns() override {
    if (const auto work = work_.lock())
      note(work->finished_ns());
    return finished_ns_.load();
  }

 private:
  std::weak_ptr<Work> work_;
  std::atomic<int64_t> finished_ns_{0};
};

// The Work that its launcher has, while NotedEnd is in the records.
class NotedWork : public Work {
 public:
  NotedWork(WorkPtr inner, std::shared_ptr<NotedEnd> end)
      : inner_(std::move(inner)), end_(std::move(end)) {}
  ~NotedWork() override { end_->note(inner_->finished_ns()); }

  void wait() override { inner_->wait(); }
  void wait_on_host() override { inner_->wait_on_host(); }
  bool is_completed() override { return inner_->is_completed(); }
  int64_t finished_ns() override { return inner_->finished_ns(); }
  std::optional<int64_t> reduced_bytes() override {
    return inner_->reduced_bytes();
  }

 private:
  WorkPtr inner_;
  std::shared_ptr<NotedEnd> end_;
};

}  // namespace

WorkPtr make_completed_work() {
  return std::make_shared<CompletedWork>();
}

WorkPtr make_queued_work(torch::Device device) {
  if (!is_asynchronous(device))
    return make_completed_work();
  return std::make_shared<QueuedWork>(device);
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

CollectiveRecord
Communicator::begin(Collective op, const torch::Tensor& tensor, int peer) {
  check_call(
      !tensor.defined() || tensor.is_contiguous(),
      "{} in group '{}' needs a contiguous tensor; call contiguous()",
      to_string(op),
      name());
  check_call(
      peer >= -1 && peer < size_,
      "{} with rank {} in group '{}' of {} ranks",
      to_string(op),
      peer,
      name(),
      size_);
  if (tensor.defined()) {
    check_call(
        tensor.device().is_cpu() || tensor.device() == options_.device,
        "{} of a tensor on {} in group '{}', which was made for tensors on {}",
        to_string(op),
        tensor.device().str(),
        name(),
        options_.device.str());
  }
  CollectiveRecord record;
  record.op = op;
  record.peer = peer;
  if (tensor.defined()) {
    record.dtype = tensor.scalar_type();
    record.numel = tensor.numel();
  }
  return begin(record);
}

CollectiveRecord Communicator::begin(CollectiveRecord record) {
  // Counts launches; collectives have a number of their own below.
  record.sequence_number = sequence_number_++;
  record.bytes =
      record.numel * static_cast<int64_t>(c10::elementSize(record.dtype));
  record.launched_ns = steady_now_ns();
  const bool is_point_to_point =
      record.op == Collective::kSend || record.op == Collective::kRecv;
  if (is_point_to_point) {
    record.flight_id = note(record, messages_[{record.op, record.peer}]++);
    return record;
  }
  // Members send to and receive from different peers, but share collectives.
  record.sequence_number = collectives_++;
  record.flight_id = note(record, record.sequence_number);
  if (!options_.check_collectives)
    return record;
  try {
    if (record.flight_id >= 0)
      options_.flight_recorder->set_awaited(record.flight_id, true);
    check_signature(record);
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

template <typename Launch>
WorkPtr Communicator::launched(
    const CollectiveRecord& record,
    const Launch& launch) {
  // Nothing to move: no backend is asked (Gloo divides by the size).
  const bool is_empty = record.numel == 0 && record.op != Collective::kBarrier;
  WorkPtr work;
  try {
    work = is_empty ? make_completed_work() : launch();
  } catch (...) {
    if (record.flight_id >= 0)
      options_.flight_recorder->failed(record.flight_id);
    throw;
  }
  if (record.flight_id >= 0) {
    options_.flight_recorder->launched(record.flight_id, work);
    work = std::make_shared<RecordedWork>(
        std::move(work), options_.flight_recorder, record.flight_id);
  }
  if (options_.max_records > 0) {
    const std::lock_guard lock(records_mutex_);
    const auto end = std::make_shared<NotedEnd>(work);
    work = std::make_shared<NotedWork>(std::move(work), end);
    records_.emplace_back(record, end);
    while (static_cast<int64_t>(records_.size()) > options_.max_records)
      records_.pop_front();
  }
  return work;
}

WorkPtr Communicator::all_reduce(torch::Tensor tensor, ReduceOp op) {
  const auto record = begin(Collective::kAllReduce, tensor, -1);
  return launched(
      record, [&] { return do_all_reduce(outside_graph(tensor), op, record); });
}

WorkPtr Communicator::all_reduce_as_bf16(torch::Tensor tensor) {
  check_call(
      tensor.scalar_type() == torch::kFloat && tensor.is_contiguous(),
      "all_reduce_as_bf16 in group '{}' needs a contiguous float32 tensor",
      name());
  CollectiveRecord shape;
  shape.op = Collective::kAllReduce;
  shape.dtype = torch::kBFloat16;
  shape.numel = tensor.numel();
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
  return std::make_shared<WidenedWork>(
      std::move(reduction), std::move(wire), std::move(tensor));
}

WorkPtr Communicator::all_reduce_rows(torch::Tensor matrix) {
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
  check_call(
      input.numel() == output.numel() * size_ &&
          input.scalar_type() == output.scalar_type(),
      "reduce_scatter from {} to {} elements over {} ranks, or of unlike "
      "dtypes",
      input.numel(),
      output.numel(),
      size_);
  const auto record = begin(Collective::kReduceScatter, input, -1);
  return launched(record, [&] {
    return do_reduce_scatter(
        outside_graph(output), outside_graph(input), record);
  });
}

WorkPtr Communicator::all_gather(torch::Tensor output, torch::Tensor input) {
  check_call(
      output.numel() == input.numel() * size_ &&
          input.scalar_type() == output.scalar_type(),
      "all_gather from {} to {} elements over {} ranks, or of unlike dtypes",
      input.numel(),
      output.numel(),
      size_);
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
  check_call(
      output.numel() == input.numel() && input.numel() % size_ == 0 &&
          input.scalar_type() == output.scalar_type(),
      "all_to_all from {} to {} elements over {} ranks, or of unlike dtypes",
      input.numel(),
      output.numel(),
      size_);
  const auto record = begin(Collective::kAllToAll, input, -1);
  return launched(record, [&] {
    return do_all_to_all(outside_graph(output), outside_graph(input), record);
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
  const auto recv = begin(Collective::kRecv, pair.received, pair.source);
  const auto send = begin(Collective::kSend, pair.sent, pair.destination);
  const auto work =
      launched(send, [&] { return do_exchange(outside, send, recv); });
  return launched(recv, [&] { return work; });
}

WorkPtr Communicator::do_exchange(
    const MessagePair& pair,
    const CollectiveRecord& send,
    const CollectiveRecord& recv) {
  auto received = do_recv(pair.received, pair.source, pair.tag, recv);
  return std::make_shared<PairWork>(
      std::move(received),
      do_send(pair.sent, pair.destination, pair.tag, send));
}

void Communicator::barrier() {
  const auto record = begin(Collective::kBarrier, torch::Tensor(), -1);
  launched(record, [&] { return do_barrier(record); })->wait_on_host();
}

std::vector<CollectiveRecord> Communicator::records() const {
  const std::lock_guard lock(records_mutex_);
  std::vector<CollectiveRecord> result;
  result.reserve(records_.size());
  for (const auto& [record, work] : records_) {
    result.push_back(record);
    result.back().finished_ns = work->finished_ns();
  }
  return result;
}

void Communicator::clear_records() {
  const std::lock_guard lock(records_mutex_);
  records_.clear();
}

}  // namespace brigade
