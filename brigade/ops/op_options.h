// What every op takes besides its operands: which kernels compute it and where
// the gradient of its weight goes.
#pragma once

#include "brigade/ops/weight_grad.h"

namespace brigade::ops {

// Which kernel set computes an op (kernel_set.h).
enum class Kernels {
  // The CPU kernels for operands on the CPU that are all bf16 or all float32;
  // ATen for any other device or dtype. This is a rule, not a fallback: the
  // same operands always get the same kernels.
  kAuto,
  kCpu,   // the CPU kernels; other operands are an Error
  kAten,  // ATen calls alone, for any device and dtype that libtorch knows
};

// Both with the defaults of an ordinary autograd op.
struct OpOptions {
  WeightGrad weight_grad = WeightGrad::kReturn;
  Kernels kernels = Kernels::kAuto;

  OpOptions() = default;
  // Implicit, since most callers choose only where the weight's gradient goes.
  OpOptions(WeightGrad grad, Kernels set = Kernels::kAuto)  // NOLINT
      : weight_grad(grad), kernels(set) {}
};

}  // namespace brigade::ops
