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
// This is the interface. BucketedGradSync reduces flat buckets while backward
// runs; PerParamGradSync reduces parameter by parameter and is its oracle.
//
// Hooks run on the thread that autograd runs a parameter's backward on: on the
// CPU the one that calls backward(), on GPUs a thread per device. Every other
// call comes from the trainer's thread, between backwards.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/bucket_step.h"
#include "brigade/data_parallel/grad_buffer.h"
#include "brigade/data_parallel/uneven_inputs.h"
#include "brigade/data_parallel/wrapped_params.h"
#include "brigade/data_parallel/write_watch.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

class ShardedWeights;

// How gradients of several ranks become one.
enum class Reduction { kMean, kSum };

// A parameter that no backward of the step reached, on this rank.
enum class MissingGradient {
  // The step is not complete without it: a further backward() may bring it,
  // and finish() or the next step's backward() is a ConfigError naming it.
  kError,
  // It counts as zero, and ranks may disagree on which are missing: DDP's
  // find_unused_parameters. One missing on every rank keeps an undefined
  // .grad() (kParamDtype). Costs an all-reduce of 8 bytes per parameter. A rank
  // whose loss reaches no parameter at all calls finish().
  kZero,
};

// Where the optimizer finds the gradient after finish().
enum class GradHandover {
  // param.grad() in the parameter's dtype, the mean applied: torch::optim.
  // Once the optimizer has stepped (WriteWatch), the next step starts from zero
  // by itself; zero_grad() is needed only to drop gradients.
  kParamDtype,
  // The flat main_grads of segments(), unscaled (see grad_scale()): Brigade's
  // AdamW. param.grad() is the main_grad, also during backward, so that fused
  // ops add straight into it; the optimizer that reads it clears it
  // (AfterRead::kZero), or the caller does by zero_main_grads().
  kMainGrad,
};

// How often a step's last backward reaches a parameter: more than once where
// nested backwards (recomputations) share it.
enum class GraphReach {
  kOnce,
  // As often as in the first step, which counts and reduces only after its
  // backward: DDP's static_graph.
  kAsInFirstStep,
};

// When the step's collectives are waited for.
enum class FinishMode {
  // backward() waits for the reduction before it returns, as PyTorch's DDP: the
  // one in which the step's last parameter became ready.
  kAtEndOfBackward,
  kExplicit,  // finish() waits; work may be put before it
};

// Sharding: when gather_weights(), and with it DataParallel::step(), returns.
enum class GatherMode {
  kInPlace,  // with the weights of all ranks in place
  // At once; operations of the next DataParallel::forward() wait for what they
  // read. Until then, or wait_for_weights(), whoever reads the module through a
  // handle of its own finds some weights of the step before.
  kOverlapForward,
};

// The same on all ranks; docs/gradient_sync.md explains each.
struct GradSyncOptions {
  int64_t bucket_capacity_bytes = 25 * MiB;
  int64_t first_bucket_bytes = 1 * MiB;
  int64_t last_bucket_bytes = 1 * MiB;
  BucketOrder order = BucketOrder::kReverse;
  Reduction reduction = Reduction::kMean;
  MissingGradient missing_gradient = MissingGradient::kError;
  GradHandover handover = GradHandover::kParamDtype;
  FinishMode finish = FinishMode::kAtEndOfBackward;
  GraphReach reach = GraphReach::kOnce;
  // Other than kNone needs kMainGrad, and an order that is known before the
  // first step; kGradients and kParameters also kOnce and kError.
  Sharding sharding = Sharding::kNone;
  GatherMode gather = GatherMode::kInPlace;
  // Empty: all_reduce_hook(), and with sharding reduce_scatter_hook().
  BucketHook hook;
};

// What each rank must choose alike, one line per option: compared when
// wrapping.
std::string describe(const GradSyncOptions& options);

class GradSync {
 public:
  virtual ~GradSync();
  GradSync(const GradSync&) = delete;
  GradSync& operator=(const GradSync&) = delete;

  // Whether the backwards to come belong to a micro-batch that is not the
  // step's last: gradients are accumulated and nothing is launched. Meanwhile
  // param.grad() is this rank's sum so far, neither reduced nor divided, and
  // clearing it (zero_grad()) drops what was accumulated.
  virtual void set_accumulate_only(bool value) = 0;
  virtual bool accumulate_only() const = 0;
  // Before a forward, where gradients are divided (divides_gradients()): if
  // every .grad() was cleared to none, so is what has accumulated. Throws
  // ConfigError where .grad() was written otherwise between micro-batches,
  // which has no such meaning.
  virtual void drop_cleared_gradients() {}

  // A parameter's gradient of this step is in main_grad. Called by the hooks;
  // by hand for a gradient that was computed outside autograd. Throws
  // ConfigError for an index outside params() and for a second call in a step.
  virtual void mark_ready(int param) = 0;
  // What steps parameters as soon as their gradients are reduced, from the next
  // step on; null: nothing, .grad stays for an optimizer. Between backwards.
  // Throws ConfigError with sharding.
  virtual void set_bucket_step(BucketStepPtr step) = 0;
  // Waits for the step's collectives and hands the gradients over. A second
  // call does nothing (but see MissingGradient::kZero). Throws ConfigError when
  // no backward was synchronised, a gradient is missing, or set_accumulate_only
  // is on; CommError when a peer was lost.
  virtual void finish() = 0;
  // Ends the step and drops what it has not finished; the next backward starts
  // anew. Implied by that backward once an optimizer has stepped. After a
  // CommError, leaves a state that can
  // be destroyed, or used once the group works again.
  virtual void reset() = 0;

  // Called when a step's gradients are reduced, before an optimizer may find
  // them.
  void before_handover(std::function<void()> call) {
    before_handover_ = std::move(call);
  }

  // What to multiply every main_grad with to get the reduction that was asked
  // for; 1 unless handover is kMainGrad and reduction is kMean.
  virtual double grad_scale() const = 0;

  // Each parameter once, in the order given, those that require a gradient; all
  // with a group.
  virtual const std::vector<NamedParam>& params() const = 0;
  // The others: they have neither gradient nor state. With kMainGrad those that
  // share no memory are in the flat weights too.
  virtual const std::vector<NamedParam>& frozen() const = 0;
  // Shaped as the parameter; without elements where its gradients are sparse.
  virtual const torch::Tensor& main_grad(int param) const = 0;
  virtual const std::vector<GradSegment>& segments() const = 0;
  // Raised whenever segments() has changed (a new plan after the first step).
  virtual int64_t layout_version() const = 0;
  // What an optimizer over segments() watches.
  virtual const FlatMemoryPtr& flat_memory() const = 0;
  // Clears every main_grad, padding included.
  virtual void zero_main_grads() = 0;

  // With sharding, what this rank owns of each parameter; else all of it.
  virtual const std::vector<OwnedPart>& owned_parts() const = 0;
  // The owned part of a parameter's main_grad, flat; empty: none of it.
  torch::Tensor owned_main_grad(int param) const;
  // Collective, after an optimizer stepped what this rank owns: exchanges the
  // weights, in the order of forward; see GatherMode. Does nothing without
  // sharding. A backward over weights that were stepped and not exchanged is a
  // ConfigError.
  virtual void gather_weights() = 0;
  // Whether there is something to wait for.
  virtual bool is_gathering() const { return false; }
  // Until then no weight may be read.
  virtual void wait_for_weights() = 0;
  // Until then this weight may not be read.
  virtual void wait_for_weight(int param) = 0;
  // Sharding::kParameters: the weights, of which none can be read otherwise.
  // Null with any other sharding.
  virtual ShardedWeights* sharded_weights() const { return nullptr; }

  // Ranks with different numbers of steps: called on every rank before the
  // first one. From then on every step begins by counting the ranks that have
  // data. Throws ConfigError with sharding, and where parameters have several
  // groups.
  virtual void allow_uneven_inputs(const UnevenInputsOptions& options) = 0;
  // Collective: this rank has no more data. Takes part in the others' steps
  // with zeros until no rank has data; then every rank gets the parameters of
  // the rank that joined last, which is returned. An accumulation that has
  // begun counts as this rank's last step.
  virtual int join() = 0;

  // The last finished step's communication.
  virtual const SyncReport& report() const = 0;
  // All ranks that wrap the module: they agree on what is done in a step, and
  // the ranks of each group are some of them.
  virtual const CommunicatorPtr& all_ranks() const = 0;
  // Between steps, without sharding, on all ranks of both: what was reduced
  // over `from` is reduced over `to` from the next step on. Throws ConfigError
  // with sharding, where gradients have arrived or uneven inputs are allowed.
  virtual void regroup(
      const CommunicatorPtr& from,
      const CommunicatorPtr& to) = 0;
  virtual const GradSyncOptions& options() const = 0;

  // What a rank that adds up all ranks' squares, each element once, counts:
  // whether that of a group's gradients this rank owns is among them.
  bool is_counted_here(const ParamGroup& group) const;
  // Whether other ranks count some that this one does not.
  bool is_counted_elsewhere() const;

  int param_index(const std::string& name) const;  // -1: unknown

  // GradHandover::kMainGrad: a range of this rank's part of a segment's
  // weights, as a leaf whose .grad() is that range of the gradients. The same
  // tensor for the same range until the layout changes. See owned_parameters().
  torch::Tensor owned_leaf(size_t segment, int64_t offset, int64_t numel);
  // GradHandover::kMainGrad: an optimizer is about to read the gradients.
  // Throws ConfigError where .grad() was changed since they were reduced and
  // does not count: divided gradients lie elsewhere, and of sums that are still
  // to be scaled no limit is meant. AdamW of make_adamw() calls it.
  void check_before_step();
  // ConfigError where flat memory has moved since owned_leaf() was called last:
  // an optimizer over those leaves would step memory that nobody reads.
  void check_leaves_are_current() const;

 protected:
  GradSync() = default;
  // ConfigError naming what regroup() does not go with.
  void check_can_regroup(const UnevenInputs& uneven_inputs) const;
  [[noreturn]] static void throw_in_step(const char* function);
  void call_before_handover() const {
    if (before_handover_)
      before_handover_();
  }

  // The step's gradients are handed over.
  void begin_use();
  // They were stepped in backward, and are gone.
  void note_use();
  // Whether an optimizer has stepped since begin_use().
  bool were_used() const;
  // kMainGrad: whether the gradients are still those of begin_use().
  bool are_uncleared() const;
  // ConfigError: an optimizer has used them, and the next ones would be added.
  void throw_if_kept() const;
  // An optimizer over owned leaves may have cleared them to none: those
  // gradients are dropped.
  void drop_cleared_leaves();
  // A step begins or its gradients are handed over: leaves that were cleared to
  // none have gradients again.
  void show_leaf_gradients();
  // ConfigError where such an optimizer has cleared gradients since, which
  // before the step's end does not drop what has accumulated: none is not read,
  // and with Sharding::kOptimizer they are a part of this rank's own sum.
  void throw_if_leaves_changed() const;

  WriteWatch writes_;  // from begin_use() to the step or reset()

 private:
  int64_t version_of_weights() const;
  int64_t version_of_gradients() const;

  struct OwnedLeaf {
    size_t segment = 0;
    int64_t offset = 0;  // in its owned range
    torch::Tensor weight;
    int64_t grad_version = 0;  // of its .grad(), when that was shown
  };
  torch::Tensor main_grad_of(const OwnedLeaf& leaf) const;

  int64_t weights_version_ = 0;    // at begin_use()
  int64_t gradients_version_ = 0;  // the same; -1: there are none
  std::vector<OwnedLeaf> owned_leaves_;
  int64_t leaves_layout_ = 0;  // of owned_leaves_
  std::function<void()> before_handover_;
};

}  // namespace brigade
