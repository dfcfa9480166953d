// Linears of experts: each row is multiplied by the weights of its own expert.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/ops/linear.h"

namespace brigade::ops {

// y = x weight^T of counts[e] rows for each expert e in turn. x: [R, in], R the
// sum of `counts`. weights[e]: those of expert e, [out_i, in], the same shapes
// for each expert. Returns one [R, out_i] per weight of an expert, slices of
// one buffer. options: as for linear_group(), which makes one product of an
// expert's weights where they are adjacent; no adapters, no on_input_grad.
//
// One node of autograd: the gradients of all experts are there at once, those
// of experts without rows (zeros, or nothing added) with them.
std::vector<Tensor> expert_linear(
    const Tensor& x,
    const std::vector<int64_t>& counts,
    const std::vector<std::vector<Tensor>>& weights,
    const LinearOptions& options);

}  // namespace brigade::ops
