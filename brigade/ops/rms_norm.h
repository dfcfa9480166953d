// RMSNorm (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization"),
// alone and with the residual add before it.
//
//   y = x / sqrt(mean(x^2, last dim) + eps) * (weight_offset + weight)
//
// Accumulated in float32 (double for double operands), rounded once at the end.
// Dimensions before the last are free.
#pragma once

#include <utility>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

struct RmsNormFormula {
  double eps;
  double weight_offset;  // 1 in models that learn the difference from 1

  // Implicit: most models have no offset.
  RmsNormFormula(double epsilon, double offset = 0)  // NOLINT
      : eps(epsilon), weight_offset(offset) {}
};

// x: [.., C]; weight: [C]. Returns [.., C] of x's dtype.
Tensor rms_norm(
    const Tensor& x,
    const Tensor& weight,
    const RmsNormFormula& formula,
    const OpOptions& options = {});

// Returns {rms_norm(x + residual), x + residual}; the sum is rounded to x's
// dtype once and the norm is taken of the rounded sum, so that the next block
// adds to exactly what this one saw.
std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    const RmsNormFormula& formula,
    const OpOptions& options = {});

}  // namespace brigade::ops
