#include "staged_communicator.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/device_stream.h"
#include "brigade/comm/gloo/gloo_communicator.h"
#include "brigade/comm/self_communicator.h"
#include "late_device.h"

namespace brigade::testing {
namespace {

using torch::Tensor;

// The outcome of an operation on the transfer stream.
struct Outcome {
  std::exception_ptr error;
};

class StagedWork : public Work {
 public:
  StagedWork(
      StreamMark mark,
      std::shared_ptr<Outcome> outcome,
      Forgotten forgotten)
      : mark_(std::move(mark)),
        outcome_(std::move(outcome)),
        forgotten_(forgotten) {}

  void wait() override {
    if (forgotten_ != Forgotten::kConsumer)
      mark_.wait();
  }
  void wait_on_host() override {
    mark_.wait_on_host();
    if (outcome_->error)
      std::rethrow_exception(outcome_->error);
  }
  bool is_completed() override { return mark_.is_reached(); }
  int64_t finished_ns() override { return mark_.reached_ns(); }

 private:
  StreamMark mark_;
  std::shared_ptr<Outcome> outcome_;
  Forgotten forgotten_;
};

class StagedCommunicator : public Communicator {
 public:
  StagedCommunicator(
      const StorePtr& store,
      int rank,
      int size,
      const CommunicatorOptions& options,
      Forgotten forgotten)
      : Communicator(rank, size, options),
        forgotten_(forgotten),
        host_(join(store, "host")),
        wire_(join(store, "wire")),
        collectives_(options.device) {}

  ~StagedCommunicator() override {
    // Operations under way use this object.
    for (const StreamMark& mark : under_way_)
      mark.wait_on_host();
  }

  bool is_ordered() const override { return true; }

 private:
  using Record = const CollectiveRecord&;
  using Body = std::function<WorkPtr(const std::vector<Tensor>& values)>;

  CommunicatorPtr join(const StorePtr& store, const char* what) {
    CommunicatorOptions inner{
        .name = name() + " " + what, .timeout = options().timeout};
    return make_gloo_communicator(
        store->with_prefix(what), rank(), size(), std::move(inner));
  }

  // Runs `body` on the values of `tensors`, on `stream`.
  WorkPtr
  staged(const SideStream& stream, std::vector<Tensor> tensors, Body body) {
    const auto written = StreamMark::of_current_stream(options().device);
    const auto outcome = std::make_shared<Outcome>();
    const StreamScope scope(stream);
    if (forgotten_ != Forgotten::kProducer)
      written.wait();
    queue_late(
        tensors,
        [this, body = std::move(body), outcome](
            const std::vector<Tensor>& values) {
          try {
            // Several streams may launch at once, each waiting for its own.
            std::unique_lock lock(mutex_);
            const WorkPtr work = body(values);
            lock.unlock();
            work->wait();
          } catch (...) {
            outcome->error = std::current_exception();
          }
        });
    const auto mark = StreamMark::timed(options().device);
    under_way_.push_back(mark);
    return std::make_shared<StagedWork>(mark, outcome, forgotten_);
  }

  WorkPtr collective(std::vector<Tensor> tensors, Body body) {
    return staged(collectives_, std::move(tensors), std::move(body));
  }

  WorkPtr message(int peer, std::vector<Tensor> tensors, Body body) {
    auto& stream = pairs_[peer];
    if (stream == nullptr)
      stream = std::make_unique<SideStream>(options().device);
    return staged(*stream, std::move(tensors), std::move(body));
  }

  WorkPtr do_all_reduce(Tensor tensor, ReduceOp op, Record) override {
    if (tensor.is_cpu())
      return host_->all_reduce(tensor, op);
    return collective({tensor}, [this, op](const auto& values) {
      return wire_->all_reduce(values[0], op);
    });
  }
  WorkPtr do_reduce_scatter(Tensor output, Tensor input, Record) override {
    if (input.is_cpu())
      return host_->reduce_scatter(output, input);
    return collective({output, input}, [this](const auto& values) {
      return wire_->reduce_scatter(values[0], values[1]);
    });
  }
  WorkPtr do_all_gather(Tensor output, Tensor input, Record) override {
    if (input.is_cpu())
      return host_->all_gather(output, input);
    return collective({output, input}, [this](const auto& values) {
      return wire_->all_gather(values[0], values[1]);
    });
  }
  WorkPtr do_broadcast(Tensor tensor, int root, Record) override {
    if (tensor.is_cpu())
      return host_->broadcast(tensor, root);
    return collective({tensor}, [this, root](const auto& values) {
      return wire_->broadcast(values[0], root);
    });
  }
  WorkPtr do_all_to_all(
      Tensor output,
      Tensor input,
      const RowSplits& splits,
      Record) override {
    if (input.is_cpu())
      return host_->all_to_all_single(output, input, splits);
    return collective({output, input}, [this, splits](const auto& values) {
      return wire_->all_to_all_single(values[0], values[1], splits);
    });
  }
  // Tags are dropped, since NCCL has none.
  WorkPtr do_send(Tensor tensor, int destination, int tag, Record) override {
    if (tensor.is_cpu())
      return host_->send(tensor, destination, tag);
    return message(destination, {tensor}, [this, destination](const auto& v) {
      return wire_->send(v[0], destination);
    });
  }
  WorkPtr do_recv(Tensor tensor, int source, int tag, Record) override {
    if (tensor.is_cpu())
      return host_->recv(tensor, source, tag);
    return message(source, {tensor}, [this, source](const auto& v) {
      return wire_->recv(v[0], source);
    });
  }
  WorkPtr do_exchange(const MessagePair& pair, Record, Record) override {
    return collective(
        {pair.sent, pair.received}, [this, pair](const auto& values) {
          return wire_->exchange(
              {values[0], pair.destination, values[1], pair.source, 1});
        });
  }
  WorkPtr do_barrier(Record) override {
    host_->barrier();
    return make_completed_work();
  }

  Forgotten forgotten_;
  CommunicatorPtr host_;
  CommunicatorPtr wire_;
  std::mutex mutex_;  // guards launches on wire_
  SideStream collectives_;
  std::map<int, std::unique_ptr<SideStream>> pairs_;  // by peer
  std::vector<StreamMark> under_way_;
};

}  // namespace

BackendOptions staged_backend(Forgotten forgotten) {
  BackendOptions backend;
  backend.make = [forgotten](
                     const StorePtr& store,
                     int rank,
                     int size,
                     const CommunicatorOptions& options) -> CommunicatorPtr {
    if (size == 1)
      return make_self_communicator(options);
    return std::make_shared<StagedCommunicator>(
        store, rank, size, options, forgotten);
  };
  return backend;
}

}  // namespace brigade::testing
