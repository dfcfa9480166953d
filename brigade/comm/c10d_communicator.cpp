#include "brigade/comm/c10d_communicator.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/clock.h"
#include "brigade/base/error.h"
#include "brigade/comm/bf16_all_reduce.h"
#include "brigade/comm/bf16_bits.h"
#include "brigade/comm/bf16_wire.h"
#include "brigade/comm/c10d_store.h"
#include "brigade/comm/sequential_worker.h"

namespace brigade {
namespace {

using C10dWorkPtr = c10::intrusive_ptr<c10d::Work>;

// How long a failed rank waits for the others to say that they failed too;
// those that stay silent are the suspects that the error names.
constexpr std::chrono::milliseconds kPostMortemWait{1000};

// Gloo's reductions know these types; everything else is composed.
bool gloo_reduces(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat:
    case torch::kDouble:
    case torch::kHalf:
    case torch::kInt:
    case torch::kLong:
    case torch::kByte:
    case torch::kChar:
      return true;
    default:
      return false;
  }
}

// The same memory as flat bytes; keeps the tensor alive.
torch::Tensor as_bytes(const torch::Tensor& tensor) {
  return torch::from_blob(
      tensor.data_ptr(),
      {tensor.numel() * tensor.element_size()},
      [tensor](void*) {},
      torch::kByte);
}

torch::Tensor flat(const torch::Tensor& tensor) {
  return tensor.detach().view({-1});
}

// One pass over memory, in blocks that stay in the cache.
void sum_bf16_rows(const torch::Tensor& output, const torch::Tensor& rows) {
  constexpr int64_t kBlock = 4096;
  std::array<float, kBlock> sums;
  const int64_t numel = rows.size(1);
  const uint16_t* input = bf16_bits(rows);
  uint16_t* result = bf16_bits(output);
  for (int64_t begin = 0; begin < numel; begin += kBlock) {
    const int64_t count = std::min(kBlock, numel - begin);
    widen_from_bf16(input + begin, sums.data(), count);
    add_bf16_rows(
        sums.data(),
        result + begin,
        {input + begin, rows.size(0), numel, /*left_out=*/0},
        count);
  }
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

// Which ranks failed, told through the store when a group breaks.
class PostMortem {
 public:
  PostMortem(StorePtr store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // "; rank 2 did not report (lost or stalled)" or an empty string.
  std::string describe() {
    const std::lock_guard lock(mutex_);
    if (told_)
      return result_;
    told_ = true;
    try {
      store_->set(fmt::format("failed/{}", rank_), "1");
      const auto deadline = std::chrono::steady_clock::now() + kPostMortemWait;
      std::vector<int> silent;
      do {
        silent.clear();
        for (int peer = 0; peer < size_; ++peer) {
          if (!store_->contains(fmt::format("failed/{}", peer)))
            silent.push_back(peer);
        }
        if (!silent.empty())
          std::this_thread::yield();
      } while (!silent.empty() && std::chrono::steady_clock::now() < deadline);
      if (!silent.empty()) {
        result_ = fmt::format(
            "; rank{} {} of this group did not report: lost or stalled",
            silent.size() > 1 ? "s" : "",
            fmt::join(silent, ", "));
      }
    } catch (const std::exception&) {
      result_ = "; the store is lost too, so the rank cannot be named";
    }
    return result_;
  }

 private:
  StorePtr store_;
  int rank_;
  int size_;
  std::mutex mutex_;
  bool told_ = false;
  std::string result_;
};

// What errors say of where they happened.
struct Place {
  std::string group;
  int rank;
  int size;
  std::shared_ptr<PostMortem> post_mortem;

  [[noreturn]] void fail(const CollectiveRecord& record, const char* why)
      const {
    std::string reason = why;
    reason = reason.substr(0, reason.find('\n'));
    throw CommError(fmt::format(
        "[comm] {} in group '{}' failed on rank {} of {}: {}{}",
        to_string(record),
        group,
        rank,
        size,
        reason,
        post_mortem->describe()));
  }
};

// An operation that c10d carries out by itself.
class NativeWork : public Work {
 public:
  NativeWork(
      C10dWorkPtr work,
      CollectiveRecord record,
      std::shared_ptr<const Place> place,
      bool has_future)
      : work_(std::move(work)),
        record_(record),
        place_(std::move(place)),
        finished_ns_(std::make_shared<std::atomic<int64_t>>(0)) {
    if (has_future) {
      // On completion's own thread: the exact end, whoever waits and when.
      work_->getFuture()->addCallback(
          [finished = finished_ns_](c10::ivalue::Future&) {
            finished->store(steady_now_ns());
          });
    }
  }

  void wait() override {
    try {
      work_->wait();
    } catch (const std::exception& error) {
      place_->fail(record_, error.what());
    }
    if (finished_ns_->load() == 0)
      finished_ns_->store(steady_now_ns());
  }
  bool is_completed() override { return work_->isCompleted(); }
  int64_t finished_ns() override { return finished_ns_->load(); }

 private:
  C10dWorkPtr work_;
  CollectiveRecord record_;
  std::shared_ptr<const Place> place_;
  std::shared_ptr<std::atomic<int64_t>> finished_ns_;
};

// An operation that the communicator's thread composes of several.
class ComposedWork : public Work {
 public:
  ComposedWork(CollectiveRecord record, std::shared_ptr<const Place> place)
      : record_(record), place_(std::move(place)) {}

  void finish(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
    finished_ns_ = steady_now_ns();
    finished_.notify_all();
  }
  void wait() override {
    std::unique_lock lock(mutex_);
    finished_.wait(lock, [this] { return finished_ns_ != 0; });
    if (!error_)
      return;
    try {
      std::rethrow_exception(error_);
    } catch (const std::exception& error) {
      place_->fail(record_, error.what());
    }
  }
  bool is_completed() override { return finished_ns() != 0; }
  int64_t finished_ns() override {
    const std::lock_guard lock(mutex_);
    return finished_ns_;
  }

 private:
  CollectiveRecord record_;
  std::shared_ptr<const Place> place_;
  std::mutex mutex_;
  std::condition_variable finished_;
  std::exception_ptr error_;
  int64_t finished_ns_ = 0;
};

// What the other rank of two sent, added by whoever waits for it.
class PairSumWork : public Work {
 public:
  PairSumWork(WorkPtr exchange, torch::Tensor tensor, torch::Tensor other)
      : exchange_(std::move(exchange)),
        tensor_(std::move(tensor)),
        other_(std::move(other)) {}

  void wait() override {
    exchange_->wait();
    if (!other_.defined())
      return;
    add_bf16(bf16_bits(tensor_), bf16_bits(other_), tensor_.numel());
    other_.reset();
  }
  bool is_completed() override { return exchange_->is_completed(); }
  int64_t finished_ns() override { return exchange_->finished_ns(); }

 private:
  WorkPtr exchange_;
  torch::Tensor tensor_;
  torch::Tensor other_;
};

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(
      const StorePtr& store,
      int rank,
      int size,
      CommunicatorOptions options,
      const GlooOptions& gloo)
      : Communicator(rank, size, std::move(options)),
        store_(store),
        gloo_options_(gloo),
        place_(std::make_shared<const Place>(Place{
            name(),
            rank,
            size,
            std::make_shared<PostMortem>(store, rank, size)})),
        group_(join("main")) {}

 private:
  using Record = const CollectiveRecord&;
  using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

  GroupPtr join(const std::string& suffix) {
    auto options =
        c10d::ProcessGroupGloo::Options::create(this->options().timeout);
    try {
      options->devices.push_back(
          gloo_options_.interface.empty()
              ? c10d::ProcessGroupGloo::createDefaultDevice()
              : c10d::ProcessGroupGloo::createDeviceForInterface(
                    gloo_options_.interface));
      return c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10d_store(store_->with_prefix(suffix)), rank(), size(), options);
    } catch (const std::exception& error) {
      throw CommError(fmt::format(
          "[comm] rank {} of {} could not join group '{}': {}",
          rank(),
          size(),
          name(),
          error.what()));
    }
  }

  // What launch() returns; what it throws is told with the operation's name.
  template <typename Launch>
  auto guarded(Record record, Launch&& launch) -> decltype(launch()) {
    const torch::NoGradGuard no_grad;
    try {
      return launch();
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      place_->fail(record, error.what());
    }
  }

  template <typename Launch>
  WorkPtr native(Record record, Launch&& launch, bool has_future = true) {
    return guarded(record, [&]() -> WorkPtr {
      return std::make_shared<NativeWork>(launch(), record, place_, has_future);
    });
  }

  // Runs `second_half` on the worker once `first` (launched here, so in every
  // rank's launch order; null: nothing to wait for) has ended.
  template <typename SecondHalf>
  WorkPtr composed(Record record, C10dWorkPtr first, SecondHalf second_half) {
    auto work = std::make_shared<ComposedWork>(record, place_);
    worker_.submit([work, first, second_half = std::move(second_half)] {
      const torch::NoGradGuard no_grad;
      std::exception_ptr error;
      try {
        if (first)
          first->wait();
        second_half();
      } catch (...) {
        error = std::current_exception();
      }
      work->finish(error);
    });
    return work;
  }

  C10dWorkPtr exchange(
      const torch::Tensor& output,
      const torch::Tensor& input) {
    auto output_bytes = as_bytes(output);
    auto input_bytes = as_bytes(input);
    std::vector<int64_t> even_splits;
    return group_->alltoall_base(
        output_bytes, input_bytes, even_splits, even_splits);
  }

  C10dWorkPtr gather(
      const GroupPtr& group,
      const torch::Tensor& output,
      const torch::Tensor& input) {
    std::vector<torch::Tensor> inputs{as_bytes(input)};
    std::vector<std::vector<torch::Tensor>> outputs{
        as_bytes(output).chunk(size())};
    return group->allgather(outputs, inputs);
  }

  // Each rank's own chunk of `tensor` to all ranks, straight from and into its
  // memory; c10d's all-gather goes through a copy. On the worker only.
  void gather_chunks(const torch::Tensor& tensor) {
    const auto chunks = as_bytes(tensor).chunk(size());
    std::vector<C10dWorkPtr> pending;
    for (int shift = 1; shift < size(); ++shift) {
      const int source = (rank() + size() - shift) % size();
      std::vector<torch::Tensor> to{chunks[static_cast<size_t>(source)]};
      pending.push_back(gather_group_->recv(to, source, /*tag=*/0));
    }
    for (int shift = 1; shift < size(); ++shift) {
      std::vector<torch::Tensor> from{chunks[static_cast<size_t>(rank())]};
      pending.push_back(
          gather_group_->send(from, (rank() + shift) % size(), /*tag=*/0));
    }
    for (const C10dWorkPtr& work : pending)
      work->wait();
  }

  // sum over dim 0 of [R, n], in rank order, in fp32 for 16-bit floats.
  static void sum_rows(const torch::Tensor& output, const torch::Tensor& rows) {
    if (rows.scalar_type() == torch::kBFloat16)
      sum_bf16_rows(output, rows);
    else if (rows.scalar_type() == torch::kHalf)
      output.copy_(rows.sum(0, /*keepdim=*/false, torch::kFloat));
    else
      at::sum_out(const_cast<torch::Tensor&>(output), rows, 0);
  }

  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record record)
      override {
    if (gloo_reduces(tensor.scalar_type())) {
      return native(record, [&] {
        std::vector<torch::Tensor> tensors{flat(tensor)};
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(op);
        return group_->allreduce(tensors, options);
      });
    }
    BRIGADE_ASSERT(
        op == ReduceOp::kSum,
        "Gloo has no {} of {}",
        to_string(record.op),
        c10::toString(record.dtype));
    if (size() == 2 && tensor.scalar_type() == torch::kBFloat16)
      return sum_of_pair(tensor, record);
    if (!gather_group_)
      gather_group_ = join("gather");
    const int64_t chunk = (tensor.numel() + size() - 1) / size();
    const torch::NoGradGuard no_grad;
    // Buckets divide evenly: their own memory is sent from and gathered into.
    auto padded = flat(tensor);
    if (chunk * size() != tensor.numel()) {
      padded = torch::zeros({chunk * size()}, tensor.options());
      padded.narrow(0, 0, tensor.numel()).copy_(flat(tensor));
    }
    auto received = torch::empty_like(padded);
    return composed(
        record,
        exchange(received, padded),
        [this, tensor, padded, received, chunk] {
          sum_rows(
              padded.narrow(0, rank() * chunk, chunk),
              received.view({size(), chunk}));
          gather_chunks(padded);
          if (padded.data_ptr() != tensor.data_ptr())
            flat(tensor).copy_(padded.narrow(0, 0, tensor.numel()));
        });
  }

  // Two ranks send as many bytes when each sends all it has, in one round
  // instead of two.
  WorkPtr sum_of_pair(const torch::Tensor& tensor, Record record) {
    const auto other = torch::empty_like(flat(tensor));
    auto exchange = native(record, [&] {
      auto output = as_bytes(other);
      auto input = as_bytes(tensor);
      std::vector<int64_t> splits(2, 0);
      splits[static_cast<size_t>(1 - rank())] = input.numel();
      auto output_splits = splits;  // c10d takes each
      return group_->alltoall_base(output, input, output_splits, splits);
    });
    return std::make_shared<PairSumWork>(
        std::move(exchange), flat(tensor), other);
  }

  WorkPtr do_all_reduce_as_bf16(torch::Tensor tensor, Record record) override {
    if (tensor.numel() % size() != 0)
      return Communicator::do_all_reduce_as_bf16(tensor, record);
    if (!gather_group_)
      gather_group_ = join("gather");
    const auto sum = guarded(record, [&] {
      return std::make_shared<Bf16AllReduce>(gather_group_, tensor);
    });
    return composed(record, C10dWorkPtr(), [sum] { sum->finish(); });
  }

  WorkPtr do_reduce_scatter(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    const torch::NoGradGuard no_grad;
    auto received = torch::empty({input.numel()}, input.options());
    return composed(
        record, exchange(received, input), [this, output, input, received] {
          sum_rows(flat(output), received.view({size(), -1}));
        });
  }

  WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    return native(record, [&] { return gather(group_, output, input); });
  }

  WorkPtr do_broadcast(torch::Tensor tensor, int root, Record record) override {
    return native(record, [&] {
      std::vector<torch::Tensor> tensors{as_bytes(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    return native(record, [&] { return exchange(output, input); });
  }

  WorkPtr do_send(torch::Tensor tensor, int destination, int tag, Record record)
      override {
    const auto launch = [&] {
      std::vector<torch::Tensor> tensors{as_bytes(tensor)};
      return group_->send(tensors, destination, tag);
    };
    return native(record, launch, /*has_future=*/false);
  }

  WorkPtr do_recv(torch::Tensor tensor, int source, int tag, Record record)
      override {
    const auto launch = [&] {
      std::vector<torch::Tensor> tensors{as_bytes(tensor)};
      return group_->recv(tensors, source, tag);
    };
    return native(record, launch, /*has_future=*/false);
  }

  WorkPtr do_barrier(Record record) override {
    return native(record, [&] { return group_->barrier(); });
  }

  void check_signature(Record record) override {
    const auto signature = torch::tensor(
        {static_cast<int64_t>(record.op),
         static_cast<int64_t>(record.dtype),
         record.numel,
         record.sequence_number,
         static_cast<int64_t>(record.peer)});
    auto all = torch::empty({size(), signature.numel()}, torch::kLong);
    native(record, [&] { return gather(group_, all, signature); })->wait();
    bool same = true;
    for (int peer = 0; peer < size(); ++peer)
      same = same && torch::equal(all[peer], signature);
    if (same)
      return;
    std::string text;
    for (int peer = 0; peer < size(); ++peer) {
      const auto* row = all[peer].data_ptr<int64_t>();
      CollectiveRecord theirs;
      theirs.op = static_cast<Collective>(row[0]);
      theirs.dtype = static_cast<torch::ScalarType>(row[1]);
      theirs.numel = row[2];
      theirs.sequence_number = row[3];
      theirs.peer = static_cast<int>(row[4]);
      text += fmt::format("\n  rank {}: {}", peer, to_string(theirs));
    }
    throw CommError(fmt::format(
        "[comm] the ranks of group '{}' launched different collectives:{}",
        name(),
        text));
  }

  StorePtr store_;
  GlooOptions gloo_options_;
  std::shared_ptr<const Place> place_;
  GroupPtr group_;
  GroupPtr gather_group_;  // messages of composed operations
  SequentialWorker worker_;
};

// Gloo writes to sockets whose other end may be gone. That has to come back as
// an error that names the operation, and not as the signal that ends a program
// (Python, for which Gloo was written, ignores it). A handler stays.
void survive_broken_pipes() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) != 0)
    return;
  const bool is_default =
      (current.sa_flags & SA_SIGINFO) == 0 && current.sa_handler == SIG_DFL;
  if (is_default)
    ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

CommunicatorPtr make_gloo_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options,
    const GlooOptions& gloo) {
  survive_broken_pipes();
  return std::make_shared<GlooCommunicator>(
      store, rank, size, std::move(options), gloo);
}

}  // namespace brigade
