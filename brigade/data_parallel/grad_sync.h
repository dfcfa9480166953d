// Gradient synchronisation: the gradients of one optimizer step, accumulated
// over micro-batches and each reduced over the ranks of its parameter's group
// (ParamGroup).
//
// Every parameter has a main_grad (fp32, or fp64 for fp64 parameters), into
// which each micro-batch's gradient is added. The step's last backward also
// launches the collectives; finish() waits for them.
//
//   kIdle --first backward--> kAccumulating --last micro-batch--> kReducing
//     ^                        |  ^      ^                            |
//     |   further micro-batches+--+      | a backward before          |
//     |                                  | an optimizer stepped       |
//     +--- reset() ---------------- kFinished <------- finish() ------+
//
// A backward after the step's end begins a new step if an optimizer has used
// the gradients; if not, its gradients are added to them, as PyTorch does, and
// reduced with them once more.
//
// GradSync is what it is done with: the parameters, their memory (ParamMemory),
// the gathering of weights (GatheredWeights), how far a step is (StepProgress)
// and what an optimizer does between two steps (HandedGradients, OwnedLeaves);
// and the order of a step. How it is done is a few verbs:
// BucketedGradSync reduces flat buckets while backward runs; its oracle
// (per_param_grad_sync.cpp) reduces parameter by parameter.
//
// Hooks run on the thread that autograd runs a parameter's backward on: on the
// CPU the one that calls backward(), on GPUs a thread per device. Every other
// call comes from the trainer's thread, between backwards. Where a step ends in
// backward, its end runs on the thread that ends it.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/grad_sync_options.h"
#include "brigade/data_parallel/handed_gradients.h"
#include "brigade/data_parallel/owned_leaves.h"
#include "brigade/data_parallel/step_progress.h"
#include "brigade/data_parallel/uneven_inputs.h"
#include "brigade/data_parallel/wrapped_params.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/options/grad_sync_algorithm.h"
#include "brigade/param/param_memory.h"
#include "brigade/schedule/bucket_plan.h"
#include "brigade/sharding/gathered_weights.h"

namespace brigade {

class GradSync {
 public:
  virtual ~GradSync();
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;

  // ---- the verbs

  // A parameter's gradient of this step is in main_grad. Called by hand, for a
  // gradient that was computed outside autograd or that no backward follows.
  // Throws ConfigError for an index outside params() and, with buckets, for a
  // second call in a step.
  void mark_ready(int param);
  // Waits for the step's collectives and hands the gradients over. A second
  // call does nothing (with MissingGradient::kZero one before anything was done
  // with the gradients; else it is a step of its own). Throws ConfigError when
  // no backward was synchronised, a gradient is missing, or set_accumulate_only
  // is on; CommError when a peer was lost.
  void finish();
  // Ends the step and drops what it has not finished; the next backward starts
  // anew. Implied by that backward once an optimizer has stepped. After a
  // CommError, leaves a state that can be destroyed, or used once the group
  // works again.
  virtual void reset() = 0;
  // Before a forward, where gradients are divided (divides_gradients()): if
  // every .grad() was cleared to none, so is what has accumulated. Throws
  // ConfigError where .grad() was written otherwise between micro-batches,
  // which has no such meaning.
  virtual void drop_cleared_gradients() {}
  // The last finished step's communication.
  virtual const SyncReport& report() const = 0;

  // Whether the backwards to come belong to a micro-batch that is not the
  // step's last: gradients are accumulated and nothing is launched. Meanwhile
  // param.grad() is this rank's sum so far, neither reduced nor divided, and
  // clearing it (zero_grad()) drops what was accumulated.
  void set_accumulate_only(bool value) { accumulate_only_ = value; }
  bool accumulate_only() const { return accumulate_only_ || holds_ > 0; }
  // The same while somebody holds it: between the first hold_reduction() and
  // the last release_reduction(), in whatever order they come.
  void hold_reduction() { ++holds_; }
  // Ends one hold.
  void release_reduction() { --holds_; }
  // Whether ranks may run out of data (allow_uneven_inputs()).
  bool has_uneven_inputs() const { return uneven_inputs_.is_allowed(); }
  // Called when a step's gradients are reduced, before an optimizer may find
  // them.
  void before_handover(std::function<void()> call) {
    before_handover_ = std::move(call);
  }

  // Called at a step's first backward, before its gradient is added; may throw.
  void before_step(std::function<void()> call) {
    before_step_ = std::move(call);
  }

  // ---- parameters

  // Each parameter once, in the order given, those that require a gradient; all
  // with a group.
  std::span<const Param> params() const { return params_.trainable(); }
  // The others: they have neither gradient nor state. With kMainGrad those that
  // share no memory are in the flat weights too.
  std::span<const Param> frozen() const { return params_.frozen(); }
  int param_index(const std::string& name) const;      // -1: unknown
  int param_index(const torch::Tensor& param) const {  // the same
    return params_.index_of(param);
  }
  const GradSyncOptions& options() const { return options_; }
  // What to multiply every main_grad with to get the reduction that was asked
  // for; 1 unless handover is kMainGrad and reduction is kMean.
  double grad_scale() const;
  // All ranks that wrap the module: they agree on what is done in a step, and
  // the ranks of each group are some of them.
  const CommunicatorPtr& all_ranks() const { return all_ranks_; }
  // Between steps, without sharding, on all ranks of both: what was reduced
  // over `from` is reduced over `to` from the next step on. Throws ConfigError
  // with sharding, with a mean, within a step, or where uneven inputs are
  // allowed.
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);
  // What a rank that adds up all ranks' squares, each element once, counts:
  // whether that of a group's gradients this rank owns is among them.
  bool is_counted_here(const ParamGroup& group) const;
  // Whether other ranks count some that this one does not.
  bool is_counted_elsewhere() const;

  // ---- memory

  // Shaped as the parameter; without elements where its gradients are sparse.
  const torch::Tensor& main_grad(int param) const {
    return memory_->main_grad(param);
  }
  std::span<const FlatSegment> segments() const { return memory_->segments(); }
  const BucketPlan& plan() const { return plan_; }
  BucketPlanOptions plan_options() const;
  // What planning knows of params().
  std::vector<BucketParam> bucket_params() const {
    return bucket_params_of(params());
  }
  // Raised whenever segments() has changed (a new plan after the first step).
  int64_t layout_version() const { return memory_->layout_version(); }
  // What an optimizer over segments() watches.
  const FlatMemoryPtr& flat_memory() const { return memory_->flat_memory(); }
  // Clears every main_grad, padding included.
  void zero_main_grads();
  // The owned part of a parameter's main_grad (Param::owned), flat; empty: none
  // of it.
  torch::Tensor owned_main_grad(int param) const;

  // ---- weights of other ranks: see GatheredWeights. A backward over weights
  // that were stepped and not gathered is a ConfigError.
  void gather_weights() { gathered_->after_step(); }
  // The same, where `finish` still has to step the weights of these parameters,
  // whichever of them this rank owns; on all ranks alike.
  void gather_weights_after(
      const std::vector<int>& late,
      std::function<void()> finish);
  // Whether there is something to wait for.
  bool is_gathering() const { return gathered_->are_under_way(); }
  // Until then no weight may be read.
  void wait_for_weights() { gathered_->need_all(); }
  // Until then this weight may not be read.
  void wait_for_weight(int param) {
    gathered_->need(params()[static_cast<size_t>(param)].owned.run);
  }
  // Sharding::kParameters: the weights, of which none can be read otherwise.
  // Null with any other sharding.
  ShardedWeights* sharded_weights() const { return gathered_->units(); }

  // GradHandover::kMainGrad: the segment of whose owned weights a tensor is a
  // view; std::nullopt: there is none.
  std::optional<size_t> segment_of(const torch::Tensor& owned) const {
    return memory_->segment_of(owned);
  }
  // Where its gradients are, flat; undefined where it is no such view.
  torch::Tensor main_grad_of(const torch::Tensor& owned) const {
    return memory_->main_grad_of(owned);
  }
  // See owned_parameters().
  OwnedLeaves& owned_leaves() { return leaves_; }
  // GradHandover::kMainGrad: an optimizer is about to read the gradients.
  // Throws ConfigError where .grad() was changed since they were reduced and
  // does not count: divided gradients lie elsewhere, and of sums that are still
  // to be scaled no limit is meant. Every Optimizer calls it
  // (FlatMemory::before_step), and step_owned().
  void check_before_step();
  // ConfigError where `function` would read gradients of a step that is under
  // way: with kMainGrad another rank's are not in them yet.
  void check_are_reduced(const char* function) const;
  // It has stepped so many elements that this rank owns, and cleared their
  // gradients or keeps them.
  void note_stepped(int64_t numel) { handed_.note_stepped(numel); }

 protected:
  //   kIdle, kAccumulating, kReducing, kFinished: see above.
  enum class Phase { kIdle, kAccumulating, kReducing, kFinished };

  // Collective over all ranks; throws what WrappedParams' constructor throws,
  // and broadcasts the values of each group's rank 0. With kMainGrad makes the
  // parameters views of flat memory.
  GradSync(
      const std::vector<Param>& params,
      CommunicatorPtr all_ranks,
      GradSyncOptions options);

  // mark_ready() of a parameter that exists, in a step.
  virtual void take_by_hand(int param) = 0;
  // finish() of a step: waits for its collectives and hands the gradients over.
  // ConfigError when a gradient is missing.
  virtual void reduce_step() = 0;
  // A new step has begun with what the last one handed over, which nobody has
  // used: of a sum over ranks each keeps the part that gives it once more.
  virtual void keep_gradients() = 0;

  // A backward has reached a parameter: a step begins, or goes on. ConfigError
  // where the last backward broke off, or .grad() of OwnedLeaves was changed.
  void enter_step();
  // The step's collectives are over.
  void set_finished();
  // Parameters without a gradient count as zeros.
  bool zeros_count() const {
    return options_.missing_gradient == MissingGradient::kZero;
  }
  // 1 / what a mean over all ranks divides by; 1 for a sum.
  double mean_scale() const;
  // The same of a parameter's own group.
  double mean_scale_of(int param) const;
  // How many ranks add to a parameter's sum in this step.
  int ranks_with_data(int param) const;
  // The same contents under another plan.
  void move_to(BucketPlan plan);
  // Buckets for parameters that become ready in this order.
  BucketPlan make_plan(const std::vector<int>& order) const;

  void call_before_handover() const {
    if (before_handover_)
      before_handover_();
  }

  // The step's gradients are handed over.
  void begin_use();

  CommunicatorPtr all_ranks_;
  GradSyncOptions options_;
  WrappedParams params_;
  UnevenInputs uneven_inputs_;
  BucketPlan plan_;
  std::unique_ptr<ParamMemory> memory_;
  std::unique_ptr<GatheredWeights> gathered_;
  OwnedLeaves leaves_;
  StepProgress progress_;
  HandedGradients handed_;

  Phase phase_ = Phase::kIdle;
  EndOfBackward end_of_backward_;  // where a round or the step may end

 private:
  // A step's first backward: whatever was done to parameters meanwhile is
  // known, and all weights are there.
  void begin_step();
  // A finished one: ends it, or goes on with gradients that nobody has used.
  void leave_step();
  void follow_memory();
  [[noreturn]] static void throw_not_reduced(const std::string& what);

  bool was_finished_by_hand_ = false;  // the last step, by a call of finish()
  bool accumulate_only_ = false;
  int holds_ = 0;  // hold_reduction()
  std::function<void()> before_handover_;
  std::function<void()> before_step_;
};

// GradSyncAlgorithm::kPerParam, without sharding and sparse gradients.
std::unique_ptr<GradSync> make_per_param_grad_sync(
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options);

// The one that `kind` names. Collective; throws what its constructor throws,
// and ConfigError for kPerParam with sharding or sparse gradients.
std::unique_ptr<GradSync> make_grad_sync(
    GradSyncAlgorithm kind,
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options);

}  // namespace brigade
