// Where the gradient of a weight goes.
//
// kAccumulate is the trainer's way: the weight is a leaf whose .grad() the data
// parallel keeps defined as a contiguous fp32 view into its bucket, even when
// the weight is bf16. The backward adds the weight's gradient there in fp32 and
// returns an undefined gradient for the weight. AccumulateGrad's post hooks
// fire all the same, so the parameter is marked ready as usual; no bf16 weight
// gradient is made, and micro-batch gradients 256 and 1 sum to 257.
#pragma once

#include <torch/types.h>

#include <string_view>

namespace brigade::ops {

using torch::Tensor;

// What backward does with a weight's gradient.
enum class WeightGrad {
  kReturn,      // ordinary autograd: a gradient of the weight's dtype
  kAccumulate,  // added in fp32 to weight.grad(); nothing is returned
};

// weight.grad(), checked: defined, fp32, contiguous and of the weight's shape.
// Throws UsageError naming the op, shapes and dtypes otherwise.
Tensor accumulation_target(std::string_view op, const Tensor& weight);

// Throws UsageError unless the weight can accumulate: a leaf (the result of
// another op has no .grad()). Called in forward.
void check_accumulates(std::string_view op, const Tensor& weight);

// The weight itself, in a form whose gradient is added to weight.grad() in fp32
// and not returned: gives any torch op the meaning of kAccumulate.
Tensor accumulating(std::string_view op, const Tensor& weight);

}  // namespace brigade::ops
