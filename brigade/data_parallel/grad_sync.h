// Gradient synchronisation: the gradients of one optimizer step, summed over
// micro-batches (gradient accumulation) and each reduced over the ranks of its
// parameter's group (Param::group).
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
// GradSync holds the state: the parameters with their memory and the gathering
// of weights (ParamSet), how far a step is (StepProgress) and what an optimizer
// does between two steps (HandedGradients, OwnedLeaves); and it defines the
// order of a step. Derived classes implement a few verbs:
// BucketedGradSync reduces flat buckets while backward runs; its oracle
// (per_param_grad_sync.cpp) reduces parameter by parameter.
//
// Hooks run on the thread that autograd runs a parameter's backward on: on the
// CPU the one that calls backward(), on GPUs a thread per device. Every other
// call comes from the trainer's thread, between backwards. If a step ends in
// backward, its end runs on the thread that ends that backward.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/grad_hooks.h"
#include "brigade/data_parallel/grad_sync_options.h"
#include "brigade/data_parallel/handed_gradients.h"
#include "brigade/data_parallel/owned_leaves.h"
#include "brigade/data_parallel/shared_memory.h"
#include "brigade/data_parallel/step_progress.h"
#include "brigade/data_parallel/uneven_inputs.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/options/grad_sync_algorithm.h"
#include "brigade/param/param_memory.h"
#include "brigade/schedule/bucket_plan.h"
#include "brigade/sharding/param_set.h"

namespace brigade {

class GradSync {
 public:
  virtual ~GradSync();
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;

  // ---- the verbs

  // Tells that a parameter's gradient of this step is in main_grad. Called by
  // hand for a gradient that was computed outside autograd, or if no backward
  // follows. Throws UsageError for an index outside params() and, with
  // buckets, for a second call in a step.
  void mark_ready(int param);
  // Waits for the step's collectives and hands the gradients over. Does nothing
  // for a finished step; with MissingGradient::kZero only the first call after
  // a backward that finished it does nothing, while its gradients are
  // untouched: any other is a step of its own. Throws UsageError if no
  // backward was synchronised, a gradient is missing, or set_accumulate_only is
  // on; CommError if a peer was lost.
  void finish();
  // Ends the step and drops what it has not finished; the next backward begins
  // a new step. Once an optimizer has stepped, the next backward implies
  // reset(). After a CommError it leaves a state that can be destroyed, or used
  // once the group works again.
  virtual void reset() = 0;
  // Called before a forward if gradients are divided (divides_gradients()): if
  // every .grad() was cleared to none, drops what has accumulated. Throws
  // UsageError if .grad() was written otherwise between micro-batches, which
  // has no such meaning.
  virtual void drop_cleared_gradients() {}
  // The last finished step's communication.
  virtual const SyncReport& report() const = 0;

  // Whether the backwards to come belong to a micro-batch that is not the
  // step's last: gradients are accumulated and nothing is launched. Meanwhile
  // param.grad() is this rank's sum so far, before reduction and division, and
  // clearing it (zero_grad()) drops what was accumulated.
  void set_accumulate_only(bool value) { accumulate_only_ = value; }
  bool accumulate_only() const { return accumulate_only_ || holds_ > 0; }
  // Has the same effect while somebody holds it: between the first
  // hold_reduction() and the last release_reduction(), in whatever order they
  // come.
  void hold_reduction() { ++holds_; }
  // Ends one hold.
  void release_reduction() { --holds_; }
  // Whether ranks may run out of data (allow_uneven_inputs()).
  bool has_uneven_inputs() const { return uneven_inputs_.is_allowed(); }
  // `call` runs when a step's gradients are reduced, before they are handed to
  // an optimizer.
  void before_handover(std::function<void()> call) {
    before_handover_ = std::move(call);
  }

  // `call` runs at a step's first backward, before its gradient is added; it
  // may throw.
  void before_step(std::function<void()> call) {
    before_step_ = std::move(call);
  }

  // ---- parameters

  // With kMainGrad all of them that share no memory are in the flat weights.
  ParamSet& param_set() { return params_; }
  const ParamSet& param_set() const { return params_; }
  // The parameters that require a gradient, each once, in the constructor's
  // order; all with a group. The others have no gradient and no state.
  std::span<const Param> params() const { return params_.trained(); }
  const GradSyncOptions& options() const { return options_; }
  // The factor that turns every main_grad into the chosen reduction; 1 unless
  // handover is kMainGrad and reduction is kMean.
  double grad_scale() const;
  // All ranks that wrap the module. They agree on what is done in a step; each
  // group consists of some of them.
  const CommunicatorPtr& all_ranks() const { return all_ranks_; }
  // From the next step on, gradients that were reduced over `from` are reduced
  // over `to`. Called between steps on all ranks of both. Throws UsageError
  // with sharding, with a mean, within a step, or if uneven inputs are allowed.
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);
  // Whether this rank counts the gradients of a group that it owns in a sum of
  // squares over all ranks, so that each element is counted once.
  bool is_counted_here(const Communicator& group) const;
  // Whether other ranks count gradients that this one does not.
  bool is_counted_elsewhere() const;

  // ---- memory

  // The flat memory of weights and gradients.
  ParamMemory& memory() { return params_.memory(); }
  // See above.
  const ParamMemory& memory() const { return params_.memory(); }
  // Has the parameter's shape; without elements if its gradients are sparse.
  const torch::Tensor& main_grad(int param) const {
    return memory().main_grad(param);
  }
  std::span<const FlatSegment> segments() const { return memory().segments(); }
  const BucketPlan& plan() const { return plan_; }
  BucketPlanOptions plan_options() const;
  // The descriptions of params() that plan_buckets() takes.
  std::vector<BucketParam> bucket_params() const {
    return bucket_params_of(params(), options_.sharding);
  }
  // Clears every main_grad, padding included.
  void zero_main_grads();
  // The owned part of a parameter's main_grad (Param::owned), flat; empty if
  // this rank owns none of it.
  torch::Tensor owned_main_grad(int param) const;

  // ---- weights of other ranks

  // Code that reads weights asks it for them first. A backward over weights
  // that were stepped and not gathered throws UsageError.
  GatheredWeights& weights() const { return params_.weights(); }
  // GatheredWeights::after_step().
  void gather_weights() { weights().after_step(); }

  // See owned_parameters().
  OwnedLeaves& owned_leaves() { return leaves_; }
  // GradHandover::kMainGrad: an optimizer is about to read the gradients.
  // Throws UsageError while the step still accumulates or, with kExplicit,
  // waits for finish() (steps in backward apart), and if .grad() was changed
  // since they were reduced in a way that has no effect or no clear meaning:
  // divided gradients lie elsewhere, and a limit cannot be meant for sums that
  // are still to be scaled. Called by every Optimizer (FlatMemory::before_step)
  // and by step_owned().
  void check_before_step();
  // Throws UsageError if `function` would read gradients of a step that is
  // under way: with kMainGrad those of other ranks are not in them yet.
  void check_are_reduced(const char* function) const;
  // An optimizer has stepped `numel` elements that this rank owns, and has
  // cleared or kept their gradients.
  void note_stepped(int64_t numel) { handed_.note_stepped(numel); }

 protected:
  //   kIdle, kAccumulating, kReducing, kFinished: see above.
  enum class Phase { kIdle, kAccumulating, kReducing, kFinished };

  // Collective over all ranks. Throws what check_params() throws, and then
  // broadcasts the values of each group's rank 0. With kMainGrad it makes
  // the parameters views of flat memory.
  GradSync(
      const std::vector<Param>& params,
      CommunicatorPtr all_ranks,
      GradSyncOptions options);

  // Implements mark_ready() for a parameter that exists, within a step.
  virtual void take_by_hand(int param) = 0;
  // Implements finish(): waits for the step's collectives and hands the
  // gradients over. Throws UsageError if a gradient is missing.
  virtual void reduce_step() = 0;
  // A new step has begun with the gradients that the last one handed over and
  // nobody has used: each rank keeps such a part of the sum over ranks that
  // reducing it again gives the same sum.
  virtual void keep_gradients() = 0;

  // A backward has reached a parameter: a step begins, or goes on. Throws
  // UsageError if the last backward broke off, or if .grad() of OwnedLeaves
  // was changed.
  void enter_step();
  // The step's collectives are over.
  void set_finished();
  // Whether parameters without a gradient count as zeros.
  bool zeros_count() const {
    return options_.missing_gradient == MissingGradient::kZero;
  }
  // 1 / the divisor of a mean over all ranks; 1 for a sum.
  double mean_scale() const;
  // The same for a parameter's own group.
  double mean_scale_of(int param) const;
  // The number of ranks that add to a parameter's sum in this step.
  int ranks_with_data(int param) const;
  // Moves the memory, with its contents, to another plan.
  void move_to(BucketPlan plan);
  // Plans buckets for parameters that become ready in this order.
  BucketPlan make_plan(const std::vector<int>& order) const;

  void call_before_handover() const {
    if (before_handover_)
      before_handover_();
  }

  // The step's gradients are handed over.
  void begin_use();

  CommunicatorPtr all_ranks_;
  GradSyncOptions options_;
  ParamSet params_;
  WrappedMemory wrapped_memory_;
  UnevenInputs uneven_inputs_;
  BucketPlan plan_;
  OwnedLeaves leaves_;
  StepProgress progress_;
  HandedGradients handed_;

  Phase phase_ = Phase::kIdle;
  bool steps_in_backward_ = false;  // an optimizer, bucket by bucket
  EndOfBackward end_of_backward_;   // where a round or the step may end

 private:
  // A step's first backward begins: takes over what was done to parameters
  // meanwhile, and waits for all weights.
  void begin_step();
  // Leaves a finished step: ends it, or goes on with gradients that nobody has
  // used.
  void leave_step();
  // Plans the first buckets and gives the parameters their memory.
  BucketPlan lay_out();
  void follow_memory();
  [[noreturn]] static void throw_not_reduced(const std::string& what);

  bool was_finished_by_hand_ = false;  // the last step, by a call of finish()
  bool accumulate_only_ = false;
  int holds_ = 0;  // hold_reduction()
  std::function<void()> before_handover_;
  std::function<void()> before_step_;
};

// GradSyncAlgorithm::kPerParam, without sharding, sparse gradients and a hook.
std::unique_ptr<GradSync> make_per_param_grad_sync(
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options);

// Makes the GradSync that `kind` names. Collective; throws what its constructor
// throws, and UsageError for kPerParam with sharding, sparse gradients or a
// hook.
std::unique_ptr<GradSync> make_grad_sync(
    GradSyncAlgorithm kind,
    const std::vector<Param>& params,
    CommunicatorPtr all_ranks,
    const GradSyncOptions& options);

}  // namespace brigade
