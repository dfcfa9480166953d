// RMSNorm (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"),
// alone and with the residual add before it.
//
//   y = x / sqrt(mean(x^2, last dim) + eps) * weight
//
// bf16 or float32, accumulated in float32, rounded once at the end. Dimensions
// before the last are free; rows may be strided, the last dim is dense.
#pragma once

#include <utility>

#include "brigade/ops/weight_grad.h"

namespace brigade::ops {

// x: [.., C]; weight: [C]. Returns [.., C] of x's dtype.
Tensor rms_norm(
    const Tensor& x,
    const Tensor& weight,
    double eps,
    WeightGrad weight_grad = WeightGrad::kReturn);

// Returns {rms_norm(x + residual), x + residual}; the sum is rounded to x's
// dtype once and the norm is taken of the rounded sum, so that the next block
// adds to exactly what this one saw.
std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    double eps,
    WeightGrad weight_grad = WeightGrad::kReturn);

}  // namespace brigade::ops
