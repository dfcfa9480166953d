// Notices that an operation of libtorch is about to read weights of
// Sharding::kParameters, whatever code of whatever module called it, in forward
// and in backward (there through views that autograd saved), and has their unit
// gathered: what the pre-forward and pre-backward hooks of PyTorch's FSDP do.
//
// It observes the dispatcher (at::RecordFunction) and sees the operations of
// libtorch and those of brigade/ops; kernels that are called otherwise are not
// seen: models that use them call ShardedWeights::use().
//
// Weights are gathered from begin_forward() to the end of the backward that
// follows, and in any backward. Read at another time, where one rank may be
// alone, they are NaN but for this rank's own.
//
// While it lives, the operations of all threads are observed, some microseconds
// each: backward may run on another thread than forward.
#pragma once

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/sharding/sharded_weights.h"

namespace brigade {

class WeightWatch {
 public:
  explicit WeightWatch(ShardedWeights& weights);
  ~WeightWatch();
  WeightWatch(const WeightWatch&) = delete;
  WeightWatch& operator=(const WeightWatch&) = delete;

  // Throws what ShardedWeights::throw_if_written() and throw_if_failed() throw,
  // and ConfigError while record functions are switched off.
  void begin_forward();
  // Throws what an operation could not: CommError. Without grad mode the pass
  // ends here.
  void end_forward();
  // After an exception in forward, which no backward follows: the pass is over.
  void give_up_forward();
  // A result of forward: a backward that begins there while record functions
  // are switched off throws ConfigError.
  void watch_backward(const torch::Tensor& output) const;

 private:
  ShardedWeights* weights_;
};

// One forward: ended, or given up where it throws.
class WatchedForward {
 public:
  explicit WatchedForward(WeightWatch& watch) : watch_(&watch) {
    watch.begin_forward();
  }
  ~WatchedForward() {
    if (watch_ != nullptr)
      watch_->give_up_forward();
  }
  WatchedForward(const WatchedForward&) = delete;
  WatchedForward& operator=(const WatchedForward&) = delete;

  // Forward is over: see WeightWatch::end_forward().
  void end() {
    watch_->end_forward();
    watch_ = nullptr;
  }

 private:
  WeightWatch* watch_;  // null: ended
};

// While it lives, every rank has all weights, whatever the sharding: to save
// them, or to read them outside forward. Collective. With kParameters they can
// be changed too, by torch::load() as well: each rank keeps its part of the
// values that they have in the end, and masters of optimizers follow. Change
// them alike on all ranks, and step no optimizer meanwhile: what it stepped is
// kept, what the whole weights held is not, and the next forward or backward
// throws ConfigError. Nor does it throw itself when it ends: a peer that is
// lost then is the next forward's CommError.
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
