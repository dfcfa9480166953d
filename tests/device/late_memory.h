// Memory of the late device: addresses that may not be touched, and the values
// that belong to them.
#pragma once

#include <c10/core/Allocator.h>
#include <torch/types.h>

namespace brigade::testing {

c10::Allocator& late_allocator();

// The tensor's values: a CPU tensor over them. For the streams' threads.
torch::Tensor values_of(const torch::Tensor& tensor);

}  // namespace brigade::testing
