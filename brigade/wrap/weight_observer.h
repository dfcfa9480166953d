// Does what the pre-forward hook and the pre-backward hook of PyTorch's FSDP
// do: notices that an operation of libtorch, called by any code of any module,
// is about to read weights of Sharding::kParameters, in forward or in backward
// (there through views that autograd saved), and has their unit gathered.
//
// It observes the dispatcher (at::RecordFunction) and sees the operations of
// libtorch and those of brigade/ops; kernels that are called without it are not
// seen: models that use them call GatheredWeights::use().
//
// Weights are gathered from begin_forward() to the end of the backward that
// follows, and in any backward. At another time, when a rank may be alone,
// reading finds NaN except in this rank's own part.
//
// While it lives, the operations of all threads are observed, some microseconds
// each: backward may run on another thread than forward.
#pragma once

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/sharding/sharded_weights.h"

namespace brigade {

class WeightObserver {
 public:
  explicit WeightObserver(ShardedWeights& weights);
  ~WeightObserver();
  WeightObserver(const WeightObserver&) = delete;
  WeightObserver& operator=(const WeightObserver&) = delete;

  // Throws what ShardedWeights::throw_if_written() and throw_if_failed() throw,
  // and UsageError while record functions are switched off.
  void begin_forward();
  // Throws CommError, which an operation could not throw itself. Without grad
  // mode the pass ends here.
  void end_forward();
  // Called after an exception in forward, which no backward follows: the pass
  // is over.
  void give_up_forward();
  // `output` is a result of forward: a backward that begins there while record
  // functions are switched off throws UsageError.
  void observe_backward(const torch::Tensor& output) const;

 private:
  ShardedWeights* weights_;
};

// One forward: it is ended by end(), or given up if it throws.
class ObservedForward {
 public:
  explicit ObservedForward(WeightObserver& observer) : observer_(&observer) {
    observer.begin_forward();
  }
  ~ObservedForward() {
    if (observer_ != nullptr)
      observer_->give_up_forward();
  }
  ObservedForward(const ObservedForward&) = delete;
  ObservedForward& operator=(const ObservedForward&) = delete;

  // Forward is over: see WeightObserver::end_forward().
  void end() {
    observer_->end_forward();
    observer_ = nullptr;
  }

 private:
  WeightObserver* observer_;  // null: ended
};

// While it lives, every rank has all weights, whatever the sharding, to save
// them or to read them outside forward. Collective. With kParameters they can
// be changed too, also by torch::load(): at the end each rank keeps its part of
// their values, and masters of optimizers follow. Make the same changes on all
// ranks, and step no optimizer meanwhile: its step would be kept, the changes
// would be lost, and the next forward or backward would throw UsageError. The
// destructor does not throw: if a peer is lost then, the next forward throws
// CommError.
class FullWeights {
 public:
  explicit FullWeights(GradSync& sync);
  ~FullWeights();
  FullWeights(const FullWeights&) = delete;
  FullWeights& operator=(const FullWeights&) = delete;

 private:
  void keep();
  void let_go(int units);

  GradSync* sync_;
  int64_t version_ = 0;  // ShardedWeights::version() when it began
};

}  // namespace brigade
