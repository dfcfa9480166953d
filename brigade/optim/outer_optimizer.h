// SGD with Nesterov momentum on flat ranges of memory: the outer optimizer of
// low-communication training (DiLoCo), whose gradient is the distance that the
// groups have moved from the common weights (pseudo-gradient;
// arXiv:2311.08105). The arithmetic is torch.optim.SGD's with nesterov=True and
// dampening=0:
//
//   momentum = mu * momentum + gradient
//   weight  -= lr * (gradient + mu * momentum)
//
// With mu 0 and lr 1 the weights become the groups' mean.
#pragma once

#include <torch/types.h>

#include "brigade/options/low_communication.h"

namespace brigade {

// weight, momentum: read and written; gradient: read. All float32, flat, of one
// length. Throws a UsageError naming the sizes when they are not.
void outer_step(
    const OuterOptimizerOptions& options,
    torch::Tensor weight,
    torch::Tensor momentum,
    const torch::Tensor& gradient);

}  // namespace brigade
