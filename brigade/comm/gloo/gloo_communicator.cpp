#include "brigade/comm/gloo/gloo_communicator.h"

#include <fmt/format.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/gloo/gloo_messages.h"
#include "brigade/comm/start/c10d_store.h"
#include "brigade/comm/start/post_mortem.h"
#include "brigade/comm/sums/composed_communicator.h"
#include "brigade/launch/environment.h"
#include "brigade/metrics/clock.h"

namespace brigade {
namespace {

// Switches off c10d's own flight recorder: it would record what Brigade records
// (flight/) again, with a stack trace each, and in libtorch 2.11 threads that
// start operations have a data race in it. A value that was set outside stays.
// Runs before main(), while there are no threads.
const bool recorder_is_off = [] {
  set_default_variable("TORCH_FR_BUFFER_SIZE", "0");
  return true;
}();

// The types that the Gloo of every libtorch reduces (not all reduce kHalf)
// without rounding to 16 bits in between; all others are composed of messages.
bool gloo_reduces(torch::ScalarType dtype) {
  switch (dtype) {
    case torch::kFloat:
    case torch::kDouble:
    case torch::kInt:
    case torch::kLong:
    case torch::kByte:
    case torch::kChar:
      return true;
    default:
      return false;
  }
}

GlooGroupPtr join(
    const StorePtr& store,
    int rank,
    int size,
    const CommunicatorOptions& communicator,
    const GlooOptions& gloo) {
  auto options = c10d::ProcessGroupGloo::Options::create(communicator.timeout);
  try {
    const auto device =
        gloo.interface.empty()
            ? c10d::ProcessGroupGloo::createDeviceForHostname(gloo.address)
            : c10d::ProcessGroupGloo::createDeviceForInterface(gloo.interface);
    options->devices.assign(kGlooConnections, device);
    return c10::make_intrusive<c10d::ProcessGroupGloo>(
        make_group_store(c10d_store(store->with_prefix("main")), rank, size),
        rank,
        size,
        options);
  } catch (const std::exception& error) {
    throw CommError(fmt::format(
        "[comm] rank {} of {} could not join group '{}': {}",
        rank,
        size,
        communicator.name,
        error.what()));
  }
}

// A collective that c10d executes by itself.
class NativeWork : public Work {
 public:
  NativeWork(
      C10dWorkPtr work,
      const CollectiveRecord& record,
      GroupFailuresPtr failures)
      : work_(std::move(work)),
        record_(record),
        failures_(std::move(failures)) {
    // Runs on the thread that completes the operation: notes the exact end and,
    // if the operation failed, reports this rank as alive, because its peers
    // lose their connections to it.
    work_->getFuture()->addCallback(
        [finished = finished_ns_,
         operation = to_string(record_),
         post_mortem = failures_->post_mortem()](c10::ivalue::Future& future) {
          finished->store(steady_now_ns());
          if (future.hasError())
            post_mortem->report({}, operation);
        });
  }

  void wait() override {
    try {
      work_->wait();
    } catch (const std::exception& error) {
      // Any exception means that the collective did not complete.
      failures_->fail(record_, std::runtime_error(error.what()));
    }
    if (finished_ns_->load() == 0)
      finished_ns_->store(steady_now_ns());
  }
  bool is_completed() override { return work_->isCompleted(); }
  int64_t finished_ns() override { return finished_ns_->load(); }

 private:
  C10dWorkPtr work_;
  CollectiveRecord record_;
  GroupFailuresPtr failures_;
  // Shared with the future's callback.
  std::shared_ptr<std::atomic<int64_t>> finished_ns_ =
      std::make_shared<std::atomic<int64_t>>(0);
};

class GlooCommunicator : public ComposedCommunicator {
 public:
  GlooCommunicator(
      const StorePtr& store,
      CommunicatorOptions options,
      GlooGroupPtr group)
      : ComposedCommunicator(
            store,
            std::move(options),
            GroupMessages(make_gloo_messages(group)),
            Waiting::kSleep),
        group_(std::move(group)) {}

 private:
  template <typename Launch>
  WorkPtr native(Record record, Launch&& launch) {
    return guarded(record, [&]() -> WorkPtr {
      return std::make_shared<NativeWork>(launch(), record, failures());
    });
  }

  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record record)
      override {
    if (gloo_reduces(tensor.scalar_type())) {
      return native(record, [&] {
        std::vector<torch::Tensor> tensors{tensor.view({-1})};
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(op);
        return group_->allreduce(tensors, options);
      });
    }
    if (op != ReduceOp::kSum) {
      throw UsageError(fmt::format(
          "[comm] {} in group '{}': the maximum or minimum of {} is not "
          "supported; convert to Float first",
          to_string(record),
          name(),
          c10::toString(record.dtype)));
    }
    return sum_by_messages(tensor, record);
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
      const RowSplits& splits,
      Record record) override {
    if (!splits.is_even())
      return ComposedCommunicator::do_all_to_all(output, input, splits, record);
    return native(record, [&] {
      auto output_bytes = as_bytes(output);
      auto input_bytes = as_bytes(input);
      std::vector<int64_t> even_splits;
      return group_->alltoall_base(
          output_bytes, input_bytes, even_splits, even_splits);
    });
  }

  WorkPtr do_barrier(Record record) override {
    return native(record, [&] { return group_->barrier(); });
  }

  GlooGroupPtr group_;
};

// Gloo writes to sockets whose other end may be gone. That must become an error
// that names the operation, and not a SIGPIPE, which ends the program (Python,
// for which Gloo was written, ignores it). A program's own handler stays.
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
  auto group = join(store, rank, size, options, gloo);
  return std::make_shared<GlooCommunicator>(
      store, std::move(options), std::move(group));
}

}  // namespace brigade
