// Clipping by the norm of all gradients and by value, whatever a rank holds of
// them: what clip_grad_norm_() and clip_grad_value_() of torch::nn::utils are
// for a module that is not wrapped.
#pragma once

#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

// The 2-norm of the step's gradients (with Reduction::kMean of their mean) over
// all parameters; where it is larger than `max_norm`, gradients are scaled down
// to it. After finish(), before the optimizer. With sharding, and where
// parameters have groups of their own, collective over all ranks, an all-reduce
// of 8 bytes: each rank has a part of the sum. Throws ConfigError
// where no gradient is left, as after an optimizer that stepped in backward.
// Not finite when a gradient is not; then all of them become NaN, as with
// PyTorch.
double clip_grad_norm(GradSync& sync, double max_norm);

// What gradients of such a norm are multiplied with: 1 up to `max_norm`; not
// finite with a norm that is NaN.
double clip_factor(double norm, double max_norm);

// Each of the step's gradients (with Reduction::kMean each mean) is limited to
// [-max_value, max_value]. When to call it and what it throws are as above; no
// communication.
void clip_grad_value(GradSync& sync, double max_value);

}  // namespace brigade
