#include "brigade/comm/gloo_communicator.h"

#include <fmt/format.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/bf16_all_reduce.h"
#include "brigade/comm/c10d_store.h"
#include "brigade/comm/chunk_exchange.h"
#include "brigade/comm/gloo_messages.h"
#include "brigade/comm/gloo_work.h"
#include "brigade/comm/post_mortem.h"
#include "brigade/comm/row_all_reduce.h"
#include "brigade/comm/sequential_worker.h"
#include "brigade/comm/signature.h"

namespace brigade {
namespace {

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

// [R, n] of R * n elements.
torch::Tensor as_chunks(const torch::Tensor& tensor, int size) {
  return tensor.detach().view({size, tensor.numel() / size});
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

class GlooCommunicator : public Communicator {
 public:
  GlooCommunicator(
      const StorePtr& store,
      int rank,
      int size,
      CommunicatorOptions options,
      const GlooOptions& gloo)
      : Communicator(rank, size, std::move(options)),
        group_(join(store, gloo)),
        messages_(group_),
        failures_(make_group_failures(store, this->options(), messages_)) {}

 private:
  using Record = const CollectiveRecord&;
  using GroupPtr = GlooMessages::GroupPtr;

  GroupPtr join(const StorePtr& store, const GlooOptions& gloo) {
    auto options =
        c10d::ProcessGroupGloo::Options::create(this->options().timeout);
    try {
      const auto device =
          gloo.interface.empty()
              ? c10d::ProcessGroupGloo::createDeviceForHostname(gloo.address)
              : c10d::ProcessGroupGloo::createDeviceForInterface(
                    gloo.interface);
      options->devices.assign(GlooMessages::kConnections, device);
      return c10::make_intrusive<c10d::ProcessGroupGloo>(
          c10d_store(store->with_prefix("main")), rank(), size(), options);
    } catch (const std::exception& error) {
      throw CommError(fmt::format(
          "[comm] rank {} of {} could not join group '{}': {}",
          rank(),
          size(),
          name(),
          error.what()));
    }
  }

  // What launch() returns; an exception in it becomes one that names the
  // operation.
  template <typename Launch>
  auto guarded(Record record, Launch&& launch) -> decltype(launch()) {
    const torch::NoGradGuard no_grad;
    try {
      return launch();
    } catch (const CommError&) {
      throw;
    } catch (const std::exception& error) {
      failures_->fail(record, error);
    }
  }

  template <typename Launch>
  WorkPtr native(Record record, Launch&& launch) {
    return guarded(record, [&]() -> WorkPtr {
      return std::make_shared<NativeWork>(launch(), record, failures_);
    });
  }

  // One message from or to a rank: the tensor's own.
  template <typename Launch>
  WorkPtr message(Record record, Launch&& launch) {
    return guarded(record, [&]() -> WorkPtr {
      PendingMessages message(messages_, MessageKind::kOfUsers);
      launch(message);
      return std::make_shared<MessageWork>(
          std::move(message), record, failures_);
    });
  }

  // Runs `body` on the worker, in launch order, and then `last` on the thread
  // that waits for the end. What body returns is Work::reduced_bytes().
  template <typename Body>
  WorkPtr
  composed(Record record, Body body, std::function<void()> last = nullptr) {
    auto work =
        std::make_shared<ComposedWork>(std::move(last), record, failures_);
    worker_.submit([this, work, body = std::move(body)] {
      const torch::NoGradGuard no_grad;
      std::exception_ptr error;
      std::optional<int64_t> reduced_bytes;
      try {
        if constexpr (std::is_void_v<decltype(body())>)
          body();
        else
          reduced_bytes = body();
      } catch (const std::exception& failure) {
        failures_->report(failure);
        error = std::current_exception();
      }
      work->finish(error, reduced_bytes);
    });
    return work;
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
      throw Error(
          ExitCode::kUnexpected,
          fmt::format(
              "[comm] {} in group '{}': the maximum or minimum of {} is not "
              "supported; convert to Float first",
              to_string(record),
              name(),
              c10::toString(record.dtype)));
    }
    if (size() == 2)
      return sum_of_pair(tensor, record);
    return composed(record, [=, this] {
      sum_in_chunks(messages_, MessageKind::kExchange, tensor);
    });
  }

  // Two ranks send as many bytes when each sends all it has, in one round
  // instead of two.
  WorkPtr sum_of_pair(const torch::Tensor& tensor, Record record) {
    const auto other = torch::empty({1, tensor.numel()}, tensor.options());
    return composed(
        record,
        [=, this] {
          PendingMessages exchange(messages_, MessageKind::kExchange);
          exchange.receive(other, 1 - rank());
          exchange.send(tensor, 1 - rank());
          exchange.wait();
        },
        [tensor, other] { add_chunks(tensor, tensor, other); });
  }

  WorkPtr do_all_reduce_rows(torch::Tensor matrix, Record record) override {
    return composed(record, [=, this] { return sum_rows(messages_, matrix); });
  }

  WorkPtr do_all_reduce_as_bf16(torch::Tensor tensor, Record record) override {
    if (tensor.numel() % size() != 0)
      return Communicator::do_all_reduce_as_bf16(tensor, record);
    const auto sum = guarded(record, [&] {
      return std::make_shared<Bf16AllReduce>(messages_, tensor);
    });
    return composed(record, [sum] { sum->finish(); });
  }

  WorkPtr do_reduce_scatter(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    const auto chunks = as_chunks(input, size());
    const auto others =
        torch::empty({size() - 1, output.numel()}, output.options());
    return composed(
        record,
        [=, this] {
          scatter_chunks(messages_, MessageKind::kExchange, chunks, others)
              .wait();
        },
        [output = output.view({-1}), own = chunks[rank()], others] {
          add_chunks(output, own, others);
        });
  }

  WorkPtr do_all_gather(
      torch::Tensor output,
      torch::Tensor input,
      Record record) override {
    return composed(record, [=, this] { gather(output, input); });
  }

  void gather(const torch::Tensor& output, const torch::Tensor& input) {
    const auto chunks = as_chunks(output, size());
    if (chunks[rank()].data_ptr() != input.data_ptr())
      chunks[rank()].copy_(input.view({-1}));
    gather_chunks(messages_, MessageKind::kExchange, chunks).wait();
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
    return native(record, [&] {
      auto output_bytes = as_bytes(output);
      auto input_bytes = as_bytes(input);
      std::vector<int64_t> even_splits;
      return group_->alltoall_base(
          output_bytes, input_bytes, even_splits, even_splits);
    });
  }

  WorkPtr do_send(torch::Tensor tensor, int destination, int tag, Record record)
      override {
    return message(record, [&](PendingMessages& message) {
      message.send(tensor, destination, tag);
    });
  }

  WorkPtr do_recv(torch::Tensor tensor, int source, int tag, Record record)
      override {
    return message(record, [&](PendingMessages& message) {
      message.receive(tensor, source, tag);
    });
  }

  WorkPtr do_barrier(Record record) override {
    return native(record, [&] { return group_->barrier(); });
  }

  void check_signature(Record record) override {
    const auto mine = signature_of(record);
    auto all = torch::empty({size(), mine.numel()}, torch::kLong);
    composed(record, [&] { gather(all, mine); })->wait();
    check_signatures(all, mine, name());
  }

  GroupPtr group_;
  GlooMessages messages_;
  GroupFailuresPtr failures_;
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
