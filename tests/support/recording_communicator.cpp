#include "tests/support/recording_communicator.h"

#include <utility>

#include "brigade/base/check.h"
#include "brigade/comm/self_communicator.h"

namespace brigade::testing {
namespace {

class LedgerWork : public Work {
 public:
  explicit LedgerWork(LaunchLedgerPtr ledger) : ledger_(std::move(ledger)) {
    ++ledger_->launches;
  }
  void wait() override {
    if (!was_waited_.exchange(true))
      ++ledger_->waited;
  }
  void wait_on_host() override {
    wait();
    ++ledger_->waited_on_host;
  }
  bool is_completed() override { return was_waited_; }
  int64_t finished_ns() override { return was_waited_ ? 1 : 0; }

 private:
  LaunchLedgerPtr ledger_;
  std::atomic<bool> was_waited_{false};
};

class RecordingCommunicator : public Communicator {
 public:
  RecordingCommunicator(
      int rank,
      int size,
      const CommunicatorOptions& options,
      LaunchLedgerPtr ledger)
      : Communicator(rank, size, options),
        ledger_(std::move(ledger)),
        is_on_cpu_(options.device.is_cpu()) {}

 private:
  using Record = const CollectiveRecord&;

  WorkPtr done(const torch::Tensor& tensor) {
    if (tensor.is_cpu() && !is_on_cpu_)
      return make_completed_work();
    return std::make_shared<LedgerWork>(ledger_);
  }

  WorkPtr do_all_reduce(torch::Tensor tensor, ReduceOp op, Record) override {
    if (tensor.is_cpu() && op == ReduceOp::kSum)
      tensor.mul_(size());
    return done(tensor);
  }
  WorkPtr do_reduce_scatter(torch::Tensor output, torch::Tensor input, Record)
      override {
    BRIGADE_ASSERT(!input.is_cpu(), "values of ranks are not scattered");
    return done(output);
  }
  WorkPtr do_all_gather(torch::Tensor output, torch::Tensor input, Record)
      override {
    if (input.is_cpu()) {
      output.view({size(), -1})
          .copy_(input.reshape({1, -1}).expand({size(), -1}));
    }
    return done(output);
  }
  WorkPtr do_broadcast(torch::Tensor tensor, int, Record) override {
    return done(tensor);
  }
  WorkPtr do_all_to_all(
      torch::Tensor output,
      torch::Tensor input,
      const RowSplits& splits,
      Record) override {
    if (input.is_cpu() && splits.is_even()) {
      output.view({size(), -1})
          .copy_(input.view({size(), -1}).narrow(0, rank(), 1));
    }
    return done(output);
  }
  WorkPtr do_send(torch::Tensor tensor, int, int, Record) override {
    return done(tensor);
  }
  WorkPtr do_recv(torch::Tensor tensor, int, int, Record) override {
    BRIGADE_ASSERT(!tensor.is_cpu(), "nobody sends values");
    return done(tensor);
  }
  WorkPtr do_barrier(Record) override { return make_completed_work(); }
  void gather_signatures(
      const torch::Tensor& all,
      const torch::Tensor& mine,
      Record) override {
    torch::Tensor(all).copy_(mine.expand_as(all));
  }

  LaunchLedgerPtr ledger_;
  bool is_on_cpu_;
};

}  // namespace

BackendOptions recording_backend(LaunchLedgerPtr ledger) {
  BackendOptions backend;
  backend.make = [ledger = std::move(ledger)](
                     const StorePtr&,
                     int rank,
                     int size,
                     const CommunicatorOptions& options) -> CommunicatorPtr {
    return std::make_shared<RecordingCommunicator>(rank, size, options, ledger);
  };
  return backend;
}

}  // namespace brigade::testing
