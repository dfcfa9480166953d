#include "brigade/comm/nccl/nccl_communicator.h"

#include "brigade/base/error.h"

#ifdef USE_C10D_NCCL
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/comm/device_stream.h"
#include "brigade/comm/gpus.h"
#include "brigade/comm/start/c10d_store.h"
#include "brigade/comm/start/post_mortem.h"
#include "brigade/launch/environment.h"
#endif

namespace brigade {

#ifdef USE_C10D_NCCL
namespace {

using NcclGroupPtr = c10::intrusive_ptr<c10d::ProcessGroupNCCL>;
using NcclWorkPtr = c10::intrusive_ptr<c10d::Work>;

class NcclWork : public Work {
 public:
  // ended: a timed mark behind the work. tensors: those of the operation, which
  // c10d itself releases at the first wait for it on any stream.
  NcclWork(
      NcclWorkPtr work,
      std::vector<torch::Tensor> tensors,
      StreamMark ended,
      const CollectiveRecord& record,
      GroupFailuresPtr failures)
      : work_(std::move(work)),
        tensors_(std::move(tensors)),
        ended_(std::move(ended)),
        record_(record),
        failures_(std::move(failures)) {}

  void wait() override {
    guarded([&] { work_->wait(); });
  }

  void wait_on_host() override {
    wait();
    constexpr std::chrono::microseconds kPause{50};
    guarded([&] {
      // The watchdog ends an aborted operation, so that it completes too.
      while (!work_->isCompleted())
        std::this_thread::sleep_for(kPause);
      if (const auto error = work_->exception())
        std::rethrow_exception(error);
    });
  }

  bool is_completed() override { return work_->isCompleted(); }

  int64_t finished_ns() override { return ended_.reached_ns(); }

 private:
  template <typename Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (const std::exception& error) {
      // Any exception means that the operation did not complete.
      failures_->fail(record_, std::runtime_error(error.what()));
    }
  }

  NcclWorkPtr work_;
  std::vector<torch::Tensor> tensors_;
  StreamMark ended_;
  CollectiveRecord record_;
  GroupFailuresPtr failures_;
};

class NcclCommunicator : public Communicator {
 public:
  NcclCommunicator(
      const StorePtr& store,
      int rank,
      int size,
      CommunicatorOptions options,
      const GlooOptions& gloo)
      : Communicator(rank, size, std::move(options)),
        device_(this->options().device),
        ends_(device_),
        host_(join_on_host(store, gloo)),
        group_(join(store)),
        failures_(std::make_shared<GroupFailures>(
            store,
            this->options(),
            rank,
            std::nullopt)) {}

  ~NcclCommunicator() override {
    // Members leave the group together, but must not wait for a lost one.
    try {
      if (group_->getError() == c10d::ErrorType::SUCCESS)
        group_->shutdown();
      else
        group_->abort();
    } catch (const std::exception&) {
      // The group is not used again, so errors do not matter.
    }
  }

  bool is_ordered() const override { return true; }

  // Pairs connect in the same order on all ranks, by the lower rank.
  void connect_ring() override {
    if (size() < 2)
      return;
    const int next = (rank() + 1) % size();
    const int previous = (rank() + size() - 1) % size();
    std::vector<std::pair<int, int>> pairs{
        std::minmax(rank(), next), std::minmax(rank(), previous)};
    std::sort(pairs.begin(), pairs.end());
    pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
    const auto greeting =
        torch::zeros({1}, torch::dtype(torch::kFloat).device(device_));
    for (const auto& [low, high] : pairs) {
      if (rank() == low)
        send(greeting, high)->wait_on_host();
      else
        recv(greeting, low)->wait_on_host();
    }
  }

  void throw_if_failed() override {
    switch (group_->getError()) {
      case c10d::ErrorType::SUCCESS:
        return;
      case c10d::ErrorType::TIMEOUT:
        failures_->fail(fmt::format(
            "it took longer than {} s (distributed.timeout_seconds)",
            std::chrono::duration_cast<std::chrono::seconds>(options().timeout)
                .count()));
      default:
        failures_->fail("NCCL reports an error");
    }
  }

 private:
  using Record = const CollectiveRecord&;

  CommunicatorPtr join_on_host(const StorePtr& store, const GlooOptions& gloo) {
    // The Gloo group has the same name, for errors; this object counts and
    // records its operations.
    CommunicatorOptions host = unobserved(options());
    host.device = torch::kCPU;
    host.max_records = 0;
    return make_gloo_communicator(
        store->with_prefix("host"), rank(), size(), std::move(host), gloo);
  }

  NcclGroupPtr join(const StorePtr& store) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = this->options().timeout;
    try {
      return c10::make_intrusive<c10d::ProcessGroupNCCL>(
          c10d_store(store->with_prefix("nccl")), rank(), size(), options);
    } catch (const std::exception& error) {
      throw CommError(fmt::format(
          "[comm] rank {} of {} could not join group '{}': {}",
          rank(),
          size(),
          name(),
          error.what()));
    }
  }

  // Calls launch() and makes a Work of c10d's work on the GPU, with `tensors`.
  template <typename Launch>
  WorkPtr queued(
      Record record,
      std::vector<torch::Tensor> tensors,
      const Launch& launch) {
    const torch::NoGradGuard no_grad;
    const c10::DeviceGuard on_device(device_);
    try {
      const NcclWorkPtr work = launch();
      // Only waits are queued on this stream, so its marks are the ends of
      // operations.
      const StreamScope scope(ends_);
      work->wait();
      return std::make_shared<NcclWork>(
          work,
          std::move(tensors),
          StreamMark::timed(device_),
          record,
          failures_);
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      failures_->fail(record, std::runtime_error(error.what()));
    }
  }

  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record record)
      override {
    if (tensor.is_cpu())
      return host_->all_reduce(tensor, op);
    return queued(record, {tensor}, [&] {
      std::vector<torch::Tensor> tensors{tensor};
      c10d::AllreduceOptions options;
      options.reduceOp = to_c10d(op);
      return group_->allreduce(tensors, options);
    });
  }

  WorkPtr do_reduce_scatter(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    if (input.is_cpu())
      return host_->reduce_scatter(output, input);
    return queued(record, {output, input}, [&] {
      auto to = output.view({-1});
      auto from = input.view({-1});
      return backend()._reduce_scatter_base(to, from);
    });
  }

  WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    if (input.is_cpu())
      return host_->all_gather(output, input);
    return queued(record, {output, input}, [&] {
      auto to = output.view({-1});
      auto from = input.view({-1});
      return backend()._allgather_base(to, from);
    });
  }

  WorkPtr do_broadcast(torch::Tensor tensor, int root, Record record) override {
    if (tensor.is_cpu())
      return host_->broadcast(tensor, root);
    return queued(record, {tensor}, [&] {
      std::vector<torch::Tensor> tensors{tensor};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }

  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      Record record) override {
    if (input.is_cpu())
      return host_->all_to_all_single(output, input, splits);
    return queued(record, {output, input}, [&] {
      auto to = splits.is_even() ? output.view({-1}) : output;
      auto from = splits.is_even() ? input.view({-1}) : input;
      auto output_rows = splits.output;
      auto input_rows = splits.input;
      return backend().alltoall_base(to, from, output_rows, input_rows);
    });
  }

  WorkPtr do_send(torch::Tensor tensor, int destination, int tag, Record record)
      override {
    if (tensor.is_cpu())
      return host_->send(tensor, destination, tag);
    return queued(record, {tensor}, [&] {
      std::vector<torch::Tensor> tensors{tensor};
      return group_->send(tensors, destination, tag);
    });
  }

  WorkPtr do_recv(torch::Tensor tensor, int source, int tag, Record record)
      override {
    if (tensor.is_cpu())
      return host_->recv(tensor, source, tag);
    return queued(record, {tensor}, [&] {
      std::vector<torch::Tensor> tensors{tensor};
      return group_->recv(tensors, source, tag);
    });
  }

  // Both in one launch of NCCL, over the group's own communicator.
  WorkPtr do_exchange(const MessagePair& pair, Record send, Record /* recv */)
      override {
    if (pair.sent.is_cpu())
      return host_->exchange(pair);
    return queued(send, {pair.sent, pair.received}, [&] {
      std::vector<torch::Tensor> sent{pair.sent};
      std::vector<torch::Tensor> received{pair.received};
      group_->startCoalescing();
      group_->send(sent, pair.destination, pair.tag);
      group_->recv(received, pair.source, pair.tag);
      return group_->endCoalescing();
    });
  }

  WorkPtr do_barrier(Record /* record */) override {
    StreamMark::of_current_stream(device_).wait_on_host();
    host_->barrier();
    throw_if_failed();
    return make_completed_work();
  }

  // Called through the base class, whose names are the same in all versions of
  // libtorch.
  c10d::Backend& backend() { return *group_; }

  torch::Device device_;
  SideStream ends_;
  CommunicatorPtr host_;
  NcclGroupPtr group_;
  GroupFailuresPtr failures_;
};

}  // namespace

void check_nccl(const LaunchEnvironment& environment) {
  check_gpus(find_gpus(), environment);
}

CommunicatorPtr make_nccl_communicator(
    const StorePtr& store,
    int rank,
    int size,
    CommunicatorOptions options,
    const GlooOptions& gloo) {
  BRIGADE_ASSERT(
      options.device.is_cuda() && options.device.has_index(),
      "NCCL on {}",
      options.device.str());
  set_default_variable("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2");
  return std::make_shared<NcclCommunicator>(
      store, rank, size, std::move(options), gloo);
}

#else

namespace {

[[noreturn]] void refuse_nccl() {
  throw ConfigError(
      "[comm] the backend \"nccl\" is not in this build: its libtorch has no "
      "NCCL; build against one with CUDA (scripts/build_cuda.sh), or train on "
      "CPUs over gloo (distributed.use_cpu = true)");
}

}  // namespace

void check_nccl(const LaunchEnvironment& /* environment */) {
  refuse_nccl();
}

CommunicatorPtr make_nccl_communicator(
    const StorePtr& /* store */,
    int /* rank */,
    int /* size */,
    CommunicatorOptions /* options */,
    const GlooOptions& /* gloo */) {
  refuse_nccl();
}

#endif

}  // namespace brigade
