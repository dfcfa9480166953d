// Memory of the late device: addresses that must not be touched, and their
// values.
#pragma once

#include <c10/core/Allocator.h>
#include <torch/types.h>

namespace brigade::testing {

c10::Allocator& late_allocator();

// A CPU tensor over the values of the tensor, for the streams' threads.
torch::Tensor values_of(const torch::Tensor& tensor);

}  // namespace brigade::testing
