// Optimizers that step in backward, as PyTorch's
// _apply_optimizer_in_backward().
//
// Gives the same weights, to the last bit, as stepping after backward. The
// gradients are gone when backward() returns: no clipping by their norm, and a
// further step() of the optimizer finds nothing to do.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <vector>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

// `optimizer` must step each parameter by itself and skip those without a
// gradient, as all of torch::optim do except LBFGS. Only its parameters that
// `sync` has are stepped. `before_step`, if any, is called with each parameter
// that is about to be stepped. `sync` and `optimizer` outlive the result.
// Throws UsageError for LBFGS, with GradHandover::kMainGrad, and if a
// parameter of `sync` is not among the optimizer's: nothing would step it.
BucketStepPtr make_bucket_step(
    GradSync& sync,
    torch::optim::Optimizer& optimizer,
    std::function<void(const torch::Tensor& param)> before_step = {});

// `optimizer` was made over `sync`, by make_adamw() or a similar function. It
// steps with learning rate `lr`, or with one for each of its parameter groups,
// and clears the main_grads. Both outlive the result. Throws UsageError if it
// was made otherwise, if it does not step its groups apart
// (Optimizer::check_steps_groups_apart()), if it lacks a parameter or a rate,
// without GradHandover::kMainGrad, and with BucketOrder::kObserved, which moves
// the memory that it steps.
BucketStepPtr make_bucket_step(GradSync& sync, Optimizer& optimizer, double lr);
// See above.
BucketStepPtr make_bucket_step(
    GradSync& sync,
    Optimizer& optimizer,
    const std::vector<double>& lrs);

}  // namespace brigade
