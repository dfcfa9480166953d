// A linear with so few outputs that it is no matrix for the kernels: a router,
// or the gate of a shared expert. Whole on every rank.
#pragma once

#include <torch/types.h>

#include "brigade/model/model_context.h"
#include "brigade/model/weights.h"

namespace brigade {

// x: [n, C] of own_tokens(), in whose dtype it is computed; returns [n, out].
torch::Tensor narrow_linear(
    const ModelContext& context,
    const torch::Tensor& x,
    const Weights& weights);

// Those tokens of [N, ..] of all that this rank computes itself: its own where
// tp divides tokens. An undefined tensor stays one.
torch::Tensor own_tokens(
    const TensorParallel& parallel,
    const torch::Tensor& of_all);

}  // namespace brigade
