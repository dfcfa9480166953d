// Clipping by the norm of all gradients, whatever a rank holds of them: what
// torch::nn::utils::clip_grad_norm_() is for a module that is not wrapped.
#pragma once

#include "brigade/data_parallel/grad_sync.h"

namespace brigade {

// The 2-norm of the step's gradients (with Reduction::kMean of their mean) over
// all parameters; where it is larger than `max_norm`, gradients are scaled down
// to it. After finish(), before the optimizer. With sharding collective, an
// all-reduce of 8 bytes: each rank has a part of the sum. Throws ConfigError
// where no gradient is left, as after an optimizer that stepped in backward.
// Not finite when a gradient is not; then all of them become NaN, as with
// PyTorch.
double clip_grad_norm(GradSync& sync, double max_norm);

}  // namespace brigade
