#pragma once

#include <torch/types.h>

namespace brigade::testing {

// A copy of `x` that autograd gives a gradient to.
inline torch::Tensor leaf(const torch::Tensor& x) {
  return x.detach().clone().set_requires_grad(true);
}

}  // namespace brigade::testing
