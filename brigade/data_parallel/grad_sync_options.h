// How gradients are synchronised: what a user chooses, the same on all ranks.
#pragma once

#include <cstdint>
#include <string>

#include "brigade/base/units.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/options/choice.h"
#include "brigade/param/sharding.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

// How gradients of several ranks become one.
enum class Reduction { kMean, kSum };
// Their names in messages.
template <>
inline constexpr std::array kChoices<Reduction>{
    Choice{Reduction::kMean, "mean"},
    Choice{Reduction::kSum, "sum"}};

// What happens to a parameter that no backward of the step reached on this
// rank.
enum class MissingGradient {
  // The step is not complete without it: a further backward() may bring it, and
  // finish() or the next step's backward() throws UsageError naming it.
  kError,
  // It counts as zero, and ranks may disagree on which are missing: DDP's
  // find_unused_parameters. A parameter that is missing on every rank keeps an
  // undefined .grad() (kParamDtype). Costs an all-reduce of 8 bytes per
  // parameter. A rank whose loss reaches no parameter at all calls finish().
  kZero,
};
// Their names in messages.
template <>
inline constexpr std::array kChoices<MissingGradient>{
    Choice{MissingGradient::kError, "error"},
    Choice{MissingGradient::kZero, "zero"}};

// Where the optimizer finds the gradient after finish().
enum class GradHandover {
  // param.grad() in the parameter's dtype, the mean applied: torch::optim.
  // Once the optimizer has stepped (WriteObserver), the next step starts from
  // zero by itself; zero_grad() is needed only to drop gradients.
  kParamDtype,
  // The flat main_grads of segments(), unscaled (see grad_scale()): Brigade's
  // optimizers. param.grad() is the main_grad, also during backward, so that
  // fused ops add straight into it; the optimizer that reads it clears it
  // (AfterRead::kZero), or the caller does by zero_main_grads().
  kMainGrad,
};
// Their names in messages.
template <>
inline constexpr std::array kChoices<GradHandover>{
    Choice{GradHandover::kParamDtype, "param_dtype"},
    Choice{GradHandover::kMainGrad, "main_grad"}};

// How often a step's last backward reaches a parameter: more than once if
// nested backwards (recomputations, activation checkpointing) share it.
enum class GraphReach {
  kOnce,
  // As often as in the first step, which counts, and reduces only after its
  // backward: DDP's static_graph.
  kAsInFirstStep,
};
// Their names in messages.
template <>
inline constexpr std::array kChoices<GraphReach>{
    Choice{GraphReach::kOnce, "once"},
    Choice{GraphReach::kAsInFirstStep, "as_in_first_step"}};

// When the step's collectives are waited for.
enum class FinishMode {
  // backward() waits for the reduction before it returns, as PyTorch's DDP: the
  // one in which the step's last parameter became ready.
  kAtEndOfBackward,
  kExplicit,  // finish() waits; work may be put before it
};

// The same on all ranks; docs/gradient_sync.md explains each.
struct GradSyncOptions {
  int64_t bucket_capacity_bytes = 25 * MiB;
  int64_t first_bucket_bytes = 1 * MiB;
  int64_t last_bucket_bytes = 1 * MiB;
  // The length of a block of an optimizer's states (kBlockNumel): parameters,
  // and the ranges that ranks own, begin at a block's beginning in flat memory.
  int64_t block_numel = 1;
  BucketOrder order = BucketOrder::kReverse;
  Reduction reduction = Reduction::kMean;
  MissingGradient missing_gradient = MissingGradient::kError;
  GradHandover handover = GradHandover::kParamDtype;
  FinishMode finish = FinishMode::kAtEndOfBackward;
  GraphReach reach = GraphReach::kOnce;
  // Any value but kNone needs kMainGrad, and a bucket order that is known
  // before the first step; kGradients and kParameters also need kOnce and
  // kError.
  Sharding sharding = Sharding::kNone;
  GatherMode gather = GatherMode::kInPlace;
  // Empty: all_reduce_hook(), and with sharding reduce_scatter_hook(). Of
  // buckets: not with GradSyncAlgorithm::kPerParam.
  BucketHook hook;
};

// The options that must be the same on all ranks, one per line: compared when
// wrapping.
std::string describe(const GradSyncOptions& options);

}  // namespace brigade
