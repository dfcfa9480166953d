// GradSync with one collective per bucket: buckets fill during backward and are
// launched in plan order, whatever order they fill in, while backward goes on.
//
// With sharding (ZeRO) the collective leaves each rank the sum of its range
// alone. If gradients are divided (ZeRO-2: Sharding::kGradients, ZeRO-3:
// kParameters), every micro-batch is reduced, in a round of its own, and its
// buckets are emptied while backward goes on. With kParameters ShardedWeights
// has the weights.
//
// Its parts are ParamSet (parameters and their flat memory),
// Handover (.grad and main_grad), BucketQueue (one collective each),
// UnevenInputs (ranks without data), GradHooks (autograd).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "brigade/data_parallel/bucket_queue.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/handover.h"
#include "brigade/data_parallel/sparse_handover.h"

namespace brigade {

// An optimizer's step in backward: a bucket's parameters are stepped as soon as
// its gradients are reduced, while backward goes on. Made from an optimizer by
// step_in_backward.h.
class BucketStep {
 public:
  virtual ~BucketStep() = default;
  // An optimizer step begins, in which each parameter is stepped once.
  virtual void begin() = 0;
  // Steps `params` (of GradSync::params(), in memory order) of a segment, whose
  // gradients are reduced and handed over, and drops their gradients. Called on
  // the thread of backward, which no longer reads them, or on the one that
  // waits for the step's end.
  virtual void step(size_t segment, const std::vector<int>& params) = 0;
};
// Null: the optimizer steps after backward.
using BucketStepPtr = std::shared_ptr<BucketStep>;

class BucketedGradSync : public GradSync {
 public:
  // Collective over all ranks that wrap the module; see GradSync's.
  BucketedGradSync(
      const std::vector<Param>& params,
      CommunicatorPtr all_ranks,
      const GradSyncOptions& options = {});
  ~BucketedGradSync() override;

  void reset() override;
  void drop_cleared_gradients() override;
  // On a device with streams the times are by its own clock, once the host has
  // waited for it; ready_ns are the host's.
  const SyncReport& report() const override;

  // From the next step on, `step` steps parameters as soon as their gradients
  // are reduced; null: nothing does, .grad stays for an optimizer. Called
  // between backwards. Throws UsageError with sharding.
  void set_bucket_step(BucketStepPtr step);
  // Calls about reductions that are over while backward still runs.
  struct Follower {
    // Called as a step's last backward begins; returns whether is_reduced() is
    // to be called in it.
    std::function<bool()> begins;
    // Called on backward's thread with each segment in order, except those
    // whose reduction ends after backward. On a device with streams, and where
    // collectives are checked, it is called at the same place among the
    // launches on all ranks.
    std::function<void(size_t segment)> is_reduced;
  };
  // Replaces the follower from the next step on. Called between backwards.
  void follow(Follower follower) { follower_ = std::move(follower); }
  // Collective: allows ranks to have different numbers of steps. Called before
  // the first one; from then on every step begins by counting the ranks that
  // have data. Throws UsageError with sharding, and if a parameter is reduced
  // over other ranks than all; CommError if ranks differ in `options`.
  void allow_uneven_inputs(const UnevenInputsOptions& options);
  // Collective: this rank has no more data. Takes part in the others' steps
  // with zeros until no rank has data; then every rank gets the parameters of
  // the rank that joined last, which is returned. An accumulation that has
  // begun counts as this rank's last step. Throws UsageError without
  // allow_uneven_inputs().
  int join();

 private:
  Handover& handover_of(int param) const {
    return params()[static_cast<size_t>(param)].has_sparse_gradient
               ? *sparse_handover_
               : *handover_;
  }
  GradPart part_of(int param) const {
    return progress_.state_of(param) == ReadyState::kNone ? GradPart::kFirst
                                                          : GradPart::kFurther;
  }

  // Called by GradHooks.
  void before_accumulate(int param, Arrival arrival);
  void after_accumulate(int param);
  void at_backward_end();

  // Phases.
  void take_by_hand(int param) override;
  void reduce_step() override;
  void keep_gradients() override;
  void begin_reducing();
  void wait_and_hand_over();
  // Ends a micro-batch that is not the step's last: see divides_gradients().
  void end_round();
  void throw_if_stepped_early();

  // Counts one more backward that reaches a parameter; returns whether it is
  // the last.
  bool is_last_reach(int param);
  void launch_ready(int param);
  void launch_bucket_of(int param);
  void finalize_missing();
  void follow_reduced_buckets();
  bool is_over(size_t bucket);
  void step_bucket(size_t bucket);
  void hand_over(const std::vector<int64_t>& used);
  void shadow_step();
  std::vector<int64_t> agree_on_used();
  void adopt_observed_order();
  void make_buckets();
  void throw_if_missing() const;
  [[noreturn]] void throw_ready_twice(int param) const;

  std::unique_ptr<Handover> handover_;
  std::unique_ptr<SparseHandover> sparse_handover_;  // null: none is sparse
  std::unique_ptr<BucketQueue> buckets_;
  BucketStepPtr bucket_step_;
  size_t followed_buckets_ = 0;  // in this step's backward, from the first on
  Follower follower_;
  bool is_followed_ = false;  // in this step's backward, by follower_
  bool order_is_final_;
  mutable SyncReport report_;  // report() fills in what the device knows
  StreamMark backward_begin_;
  StreamMark backward_end_;
  std::unique_ptr<GradHooks> hooks_;  // last: gone before what it calls
};

// Returns `sync`, which must be bucketed for what `function` does; otherwise
// throws UsageError.
BucketedGradSync& as_bucketed(GradSync& sync, const char* function);

}  // namespace brigade
