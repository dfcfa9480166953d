// Replaces a pre-forward hook of each submodule, which libtorch does not have.
// The weights of Sharding::kOptimizer and kGradients (ZeRO-1, ZeRO-2) are
// gathered bucket by bucket while forward runs (GradSync::gather_weights()): an
// operation of libtorch that reads a weight, called by any code of any module,
// waits for that weight's bucket alone.
//
// It observes the dispatcher (at::RecordFunction), and so sees the operations
// of libtorch and those of brigade/ops, in the thread that runs forward. Code
// that reads weights otherwise (data_ptr() in a kernel of the user's own) is
// safe: at its start forward waits for each weight that no operation was seen
// to read in an earlier forward, and the first forward waits for all. If an
// operation reads the same weight later in forward, such code has to call
// GatheredWeights::need_all() itself. If record functions are switched off
// (at::DisableRecordFunctionGuard), forward waits for all weights at its start.
#pragma once

#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

class GatherObserver {
 public:
  // `sync` outlives it.
  explicit GatherObserver(GradSync& sync);

  // While it lives, this thread's operations wait for the weights that they
  // read. Nested ones are allowed.
  class InForward {
   public:
    // Does nothing for null. Throws CommError, as GatheredWeights::need().
    explicit InForward(GatherObserver* observer);
    ~InForward();
    InForward(const InForward&) = delete;
    InForward& operator=(const InForward&) = delete;

    // Forward is over: waits for the weights that it did not read. Throws
    // CommError, also for an operation that could not throw it itself and read
    // weights that had not arrived.
    void end();

   private:
    GatherObserver* observer_;
    GatherObserver* outer_ = nullptr;
    uint64_t callback_ = 0;  // 0: none
  };

  // Called by the callback: `tensor` is about to be read.
  void before_read(const torch::Tensor& tensor);
  // Called by the callback: InForward::end(), or else the next InForward,
  // throws `error`, which the callback could not throw.
  void fail_later(std::exception_ptr error) { failure_ = std::move(error); }

 private:
  // The addresses of a parameter's values, so that two storages over the same
  // memory (torch::from_blob()) count as one.
  struct Range {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    const Param* param = nullptr;  // null: of none
    bool was_read = false;         // by an operation, in a forward
    void find(const torch::Tensor& tensor);
  };

  void find_ranges();

  GradSync* sync_;
  std::vector<Range> ranges_;  // by begin; they do not overlap
  bool has_seen_a_forward_ = false;
  std::exception_ptr failure_;
};

}  // namespace brigade
