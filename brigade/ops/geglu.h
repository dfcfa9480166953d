// GEGLU with the tanh form of GELU (Shazeer 2020, "GLU Variants Improve
// Transformer"; Hendrycks and Gimpel 2016, "Gaussian Error Linear Units"):
//   y = gelu(gate) * up
//   gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
// Computed in float32 (double for double operands), rounded once. ATen calls
// alone, on any device.
#pragma once

#include <torch/types.h>

namespace brigade::ops {

using torch::Tensor;

// gate, up: [.., F]; both may be column ranges of one buffer: then the
// gradients are too, in the same order. Returns [.., F], contiguous.
Tensor geglu(const Tensor& gate, const Tensor& up);

}  // namespace brigade::ops
