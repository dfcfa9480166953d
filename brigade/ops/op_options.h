// What every op takes besides its operands: which kernels compute it and where
// the gradient of its weight goes.
#pragma once

#include "brigade/ops/weight_grad.h"
#include "brigade/options/kernels.h"

namespace brigade::ops {

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
