// AdamW (Loshchilov and Hutter 2017, "Decoupled Weight Decay Regularization")
// on flat buffers, with the arithmetic of torch.optim.AdamW:
//   w *= 1 - lr * weight_decay
//   m  = beta1 * m + (1 - beta1) * g;  v = beta2 * v + (1 - beta2) * g^2
//   w -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// The numbers of one step; see the arithmetic above.
struct AdamWStep {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
  int64_t step = 1;         // t, from 1
  double grad_scale = 1.0;  // multiplies g: clipping, 1 / tokens
  Kernels kernels = Kernels::kAuto;
};

// What becomes of main_grad once it was read.
enum class AfterRead { kKeep, kZero };

// Flat and contiguous, of equal numel.
struct AdamWTensors {
  Tensor main_grad;   // float32
  Tensor exp_avg;     // float32
  Tensor exp_avg_sq;  // float32
  Tensor weight;      // float32 or bf16
  // int16: what a bf16 weight lacks of its float32 master (split_master.h),
  // which is what is stepped. Undefined for a float32 weight.
  Tensor master_low;
};

// Steps the weight; kZero clears main_grad after it was read.
void adamw_step(
    const AdamWStep& step,
    const AdamWTensors& tensors,
    AfterRead after_read = AfterRead::kKeep);

// The sum of the squares of a contiguous float32 tensor, a double scalar on its
// device. The CPU kernels give the same bits for any number of threads. Not
// finite exactly when an element is not finite.
Tensor sum_of_squares(const Tensor& values, Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
