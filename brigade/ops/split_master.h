// The float32 master of a bf16 weight, kept as the weight and the 16 bits that
// it lacks, so that a master costs 2 bytes per element instead of 4:
//
//   master's bits = (weight's bits << 16) + low, low as a signed number
//
// The weight is the master rounded to the nearest bf16. Exactly between two it
// is the one away from zero: the other would take low = 2^15, which an int16
// does not hold. Every master comes back to the last bit; a NaN as some NaN.
#pragma once

#include <torch/types.h>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// weight: bf16; low: int16 of the same shape, both contiguous. Returns float32.
Tensor join_master(
    const Tensor& weight,
    const Tensor& low,
    Kernels kernels = Kernels::kAuto);

// Writes weight and low. master: float32, of their shape, contiguous.
void split_master(
    const Tensor& master,
    Tensor weight,
    Tensor low,
    Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
