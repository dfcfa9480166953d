// A number for the bits of a tensor, to compare tensors by.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade {

// The sum over the elements' bits, read as whole numbers: any one flipped bit
// changes it. Of any dtype with elements of 1, 2, 4 or 8 bytes. Waits for the
// tensor's device. Costs a pass over the memory.
int64_t sum_of_bits(const torch::Tensor& tensor);

}  // namespace brigade
