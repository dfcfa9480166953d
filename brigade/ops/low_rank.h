// Linears with low-rank adapters (LoRA, options/adapter.h): the adapters' terms
// are added inside the node of the group, so that its input has one gradient,
// which tensor parallel starts to reduce as that of plain linears.
//
// With h = scale (x a^T), [.., rank]:
//   y  += h b^T
//   dh  = scale (dy b)     db += dy^T h     da += dh^T x     dx += dh a
//
// With dropout (input_dropout.h), x is what is left of it, so is dh a, and the
// scale is divided by 1 - rate.
//
// Private to brigade/ops: linear_group() calls it.
#pragma once

#include <vector>

#include "brigade/ops/linear.h"

namespace brigade::ops {

// Whether one of them adds something.
bool has_low_rank(const std::vector<LowRank>& adapters);

// linear_group() where has_low_rank(options.adapters). Throws UsageError for a
// weight or bias that wants a gradient, and for adapters that do not fit the
// weights.
std::vector<Tensor> low_rank_linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options);

}  // namespace brigade::ops
