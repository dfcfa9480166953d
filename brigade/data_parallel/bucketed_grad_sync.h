// GradSync with one collective per bucket: buckets fill during backward and are
// launched in plan order, whatever order they fill in, while backward goes on.
//
// With sharding the collective leaves each rank the sum of its range alone.
// Where gradients are divided (Sharding::kGradients, kParameters) every
// micro-batch is reduced: a round. Its buckets are emptied while backward goes
// on. With kParameters ShardedWeights has the weights.
//
// What it is made of: WrappedParams (alike on all ranks), WeightMemory and
// GradBuffer (flat memory), Handover (.grad and main_grad), StepProgress (who is ready),
// BucketQueue (one collective each), UnevenInputs (ranks without data),
// GradHooks (autograd).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "brigade/data_parallel/bucket_queue.h"
#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/handover.h"
#include "brigade/data_parallel/sharded_weights.h"
#include "brigade/data_parallel/step_progress.h"

namespace brigade {

class BucketedGradSync : public GradSync {
 public:
  // Collective over all ranks that wrap the module; throws what WrappedParams'
  // constructor throws, and broadcasts the values of each group's rank 0.
  BucketedGradSync(
      std::vector<NamedParam> params,
      CommunicatorPtr all_ranks,
      const GradSyncOptions& options = {});
  ~BucketedGradSync() override;

  void set_accumulate_only(bool value) override { accumulate_only_ = value; }
  void drop_cleared_gradients() override;
  bool accumulate_only() const override { return accumulate_only_; }
  void mark_ready(int param) override;
  void set_bucket_step(BucketStepPtr step) override;
  void finish() override;
  void reset() override;
  double grad_scale() const override;

  const std::vector<NamedParam>& params() const override {
    return params_.trainable();
  }
  const std::vector<NamedParam>& frozen() const override {
    return params_.frozen();
  }
  const torch::Tensor& main_grad(int param) const override {
    return buffer_->main_grad(param);
  }
  const std::vector<GradSegment>& segments() const override {
    return buffer_->segments();
  }
  int64_t layout_version() const override { return buffer_->layout_version(); }
  void zero_main_grads() override;
  const std::vector<OwnedPart>& owned_parts() const override {
    return owned_parts_;
  }
  void gather_weights() override;
  bool is_gathering() const override;
  void wait_for_weights() override;
  void wait_for_weight(int param) override;
  ShardedWeights* sharded_weights() const override {
    return sharded_weights_.get();
  }

  void allow_uneven_inputs(const UnevenInputsOptions& options) override;
  int join() override;

  // On a device with streams: by its own clock, once the host has waited for
  // it; ready_ns are the host's.
  const SyncReport& report() const override;
  const CommunicatorPtr& all_ranks() const override { return all_ranks_; }
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to) override;
  const GradSyncOptions& options() const override { return options_; }

  const BucketPlan& plan() const { return plan_; }
  BucketPlanOptions plan_options() const;
  // What planning knows of params().
  std::vector<BucketParam> bucket_params() const {
    return bucket_params_of(params());
  }
  // See FlatMemory: for optimizers over segments().
  const FlatMemoryPtr& flat_memory() const override {
    return buffer_->flat_memory();
  }

 private:
  enum class Phase { kIdle, kAccumulating, kReducing, kFinished };
  // Whether finish() was called since the step's end.
  enum class FinishCall { kNone, kSeen };

  GradPart part_of(int param) const {
    return progress_.state_of(param) == ReadyState::kNone ? GradPart::kFirst
                                                          : GradPart::kFurther;
  }

  // From GradHooks.
  void before_accumulate(int param, Arrival arrival);
  void after_accumulate(int param);
  void at_backward_end();

  // Phases.
  void enter_step();
  void begin_step();
  // A finished one: ends it, or goes on with gradients that nobody has used.
  void leave_step();
  void begin_reducing();
  void finish_step();
  void wait_and_hand_over();
  // Of a micro-batch that is not the step's last: see divides_gradients().
  void end_round();
  void throw_if_not_gathered() const;
  void throw_if_stepped_early();

  // Whether this is the last of the backwards that reach a parameter. Counts.
  bool is_last_reach(int param);
  void launch_ready(int param);
  void launch_bucket_of(int param);
  void seal_what_is_missing();
  void step_reduced_buckets();
  void hand_over(const std::vector<int64_t>& used);
  void shadow_step();
  std::vector<int64_t> agree_on_used();
  void adopt_observed_order();
  BucketPlan make_plan(const std::vector<int>& order) const;
  // What the plan says, frozen parameters included.
  std::unique_ptr<WeightMemory> make_weights() const;
  void make_buckets();
  void take_back_weights();
  double mean_scale() const;
  // The same of a parameter's own group.
  double mean_scale_of(int param) const;
  int ranks_with_data(int param) const;
  std::vector<double> factors() const;
  void reduce_apart();
  void throw_if_missing() const;
  [[noreturn]] void throw_ready_twice(int param) const;

  CommunicatorPtr all_ranks_;
  GradSyncOptions options_;
  WrappedParams params_;
  BucketPlan plan_;
  std::unique_ptr<WeightMemory> weights_;
  std::unique_ptr<GradBuffer> buffer_;
  std::unique_ptr<Handover> handover_;
  std::unique_ptr<BucketQueue> buckets_;
  std::vector<OwnedPart> owned_parts_;
  std::vector<WorkPtr> gathers_;  // by bucket; null: none under way
  int64_t gathered_version_ = 0;  // of the flat weights, when exchanged last
  std::unique_ptr<ShardedWeights> sharded_weights_;  // null: whole
  UnevenInputs uneven_inputs_;

  StepProgress progress_;
  BucketStepPtr bucket_step_;
  size_t stepped_buckets_ = 0;  // in this step's backward, from the first on
  Phase phase_ = Phase::kIdle;
  bool accumulate_only_ = false;
  bool order_is_final_;
  bool callback_is_queued_ = false;  // for the end of the current backward
  FinishCall finish_call_ = FinishCall::kNone;
  mutable SyncReport report_;  // report() fills in what the device knows
  StreamMark backward_begin_;
  StreamMark backward_end_;
  std::unique_ptr<GradHooks> hooks_;  // last: gone before what it calls
};

}  // namespace brigade
