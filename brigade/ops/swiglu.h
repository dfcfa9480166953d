// SwiGLU (Shazeer 2020, "GLU Variants Improve Transformer"):
//   y = silu(gate) * up,  silu(x) = x / (1 + exp(-x))
// Computed in float32 (double for double operands), rounded once.
#pragma once

#include <torch/types.h>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// gate, up: [.., F], each dense in its last dim; both may be halves of one
// fused [.., 2F] buffer, in either order: then the gradients come as halves of
// one buffer in the same order. Returns [.., F], contiguous.
Tensor
swiglu(const Tensor& gate, const Tensor& up, Kernels kernels = Kernels::kAuto);

// gate_up: [.., 2F], the gate first.
Tensor swiglu(const Tensor& gate_up, Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
