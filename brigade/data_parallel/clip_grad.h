// Gradient clipping by norm and by value, whatever part of the gradients a rank
// holds: what clip_grad_norm_() and clip_grad_value_() of torch::nn::utils do
// for a module that is not wrapped.
#pragma once

#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

// The 2-norm of the step's gradients (with Reduction::kMean of their mean) over
// all parameters; if it is larger than `max_norm`, gradients are scaled down to
// it. Called after finish() and before the optimizer. With sharding, and if
// parameters have groups of their own, it is collective over all ranks, an
// all-reduce of 8 bytes: each rank has a part of the sum. Throws UsageError
// while the step reduces its gradients or, with kMainGrad, accumulates them,
// and with kParamDtype if none is left, as after an optimizer that stepped in
// backward. The norm is not finite if a gradient is not. Then, as with PyTorch,
// a NaN makes all gradients NaN; an infinity becomes NaN, and finite gradients
// become 0.
double clip_grad_norm(GradSync& sync, double max_norm);

// The factor that gradients of this norm are multiplied with, as PyTorch's: 1
// for norms up to `max_norm` - 1e-6; NaN if the norm is, 0 if it is infinite.
double clip_factor(double norm, double max_norm);

// Limits each of the step's gradients (with Reduction::kMean each mean) to
// [-max_value, max_value]. Called where clip_grad_norm() may be, and throws the
// same; no communication.
void clip_grad_value(GradSync& sync, double max_value);

}  // namespace brigade
