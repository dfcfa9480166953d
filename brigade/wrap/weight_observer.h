// Does what the pre-forward hook and the pre-backward hook of PyTorch's FSDP
// do: notices that an operation of libtorch, called by any code of any module,
// is about to read weights of Sharding::kParameters, in forward or in backward
// (there through views that autograd saved), and has their unit gathered.
//
// It observes the dispatcher (at::RecordFunction) and sees the operations of
// libtorch and those of brigade/ops; kernels that are called without it are not
// seen: models that use them call GatheredWeights::use().
//
// Weights are gathered from the begin of an InForward to the end of the
// backward that follows, and in any backward. At another time, when a rank may
// be alone, reading finds NaN except in this rank's own part.
//
// While the observer lives, operations of all threads are observed, some
// microseconds each: backward may run on another thread than forward.
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

  // One forward. Without end() it has thrown, and no backward follows it: the
  // pass is over.
  class InForward {
   public:
    // Throws what ShardedWeights::throw_if_written() and throw_if_failed()
    // throw, and UsageError while record functions are switched off.
    explicit InForward(WeightObserver& observer);
    ~InForward();
    InForward(const InForward&) = delete;
    InForward& operator=(const InForward&) = delete;

    // Forward is over. Throws CommError, which an operation could not throw
    // itself. Without grad mode the pass ends here.
    void end();

   private:
    ShardedWeights* weights_;  // null: ended
  };

  // `output` is a result of forward: a backward that begins there while record
  // functions are switched off throws UsageError.
  void observe_backward(const torch::Tensor& output) const;

 private:
  ShardedWeights* weights_;
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
