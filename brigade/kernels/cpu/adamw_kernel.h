// The CPU kernels of the optimizer, elements [begin, end) on the calling
// thread.
#pragma once

#include <cstdint>

namespace brigade::ops {

template <typename T>  // float or uint16_t (bf16)
struct AdamWKernel {
  float* main_grad;
  float* exp_avg;
  float* exp_avg_sq;
  T* weight;
  uint16_t* master_low;  // of a bf16 weight, see split_master.h
  bool zero_main_grad;
  float grad_scale;
  float decay;  // 1 - lr * weight_decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float step_size;  // lr / (1 - beta1^t)
};

template <typename T>
void adamw_kernel(const AdamWKernel<T>&, int64_t begin, int64_t end);
double sum_of_squares_kernel(const float* values, int64_t numel);

}  // namespace brigade::ops
