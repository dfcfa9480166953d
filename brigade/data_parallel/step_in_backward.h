// Optimizers that step in backward: apply_optimizer_in_backward() of PyTorch.
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

// `optimizer` steps each parameter by itself and skips those without a
// gradient, as all of torch::optim do but LBFGS, for which, and with
// GradHandover::kMainGrad, it throws ConfigError. So it does where a parameter
// of `sync` is not among the optimizer's: nothing would step it. Of the
// optimizer's only those of `sync` are stepped. `before_step`, if any, is
// called with each parameter that is about to be. Both outlive the result.
BucketStepPtr make_bucket_step(
    GradSync& sync,
    torch::optim::Optimizer& optimizer,
    std::function<void(const torch::Tensor& param)> before_step = {});

// `optimizer` was made over `sync`, by make_adamw() or another such function but
// make_muon(), whose ranks compute for one another; it steps with learning rate
// `lr`, or with one for each of its parameter groups, and clears the
// main_grads. Throws ConfigError when it was not, where it lacks a parameter or
// a rate, or with BucketOrder::kObserved, which moves what it steps. Both
// outlive the result.
BucketStepPtr make_bucket_step(GradSync& sync, Optimizer& optimizer, double lr);
// See above.
BucketStepPtr make_bucket_step(
    GradSync& sync,
    Optimizer& optimizer,
    const std::vector<double>& lrs);

}  // namespace brigade
