// Products of experts as one launch: libtorch's grouped product on CUDA.
#pragma once

#include <vector>

#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

enum class GroupedSide { kForward, kInputGrads };

// As KernelSet::linears() or linear_input_grads(), where rows lie one below
// another, weights are bf16, of one shape and at multiples of one distance in
// memory. False, with nothing written: not so, or this libtorch has none.
bool multiply_grouped(
    const std::vector<LinearOperands>& each,
    GroupedSide side);

}  // namespace brigade::ops
