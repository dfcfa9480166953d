// The CPU kernels of RMSNorm. T: float or uint16_t (bf16).
#pragma once

#include <cstdint>

namespace brigade::ops {

// sum = x + residual (when residual is not null; otherwise x is normed), normed
// = sum * rstd * (weight + weight_offset), one rstd per row, for `rows` rows of
// `columns`.
template <typename T>
struct RmsNormForward {
  const T* x;
  const T* residual;  // null: none
  const T* weight;
  T* normed;  // dense rows
  T* sum;     // dense rows; unused without residual
  float* rstd;
  int64_t x_stride;
  int64_t residual_stride;
  int64_t columns;
  float eps;
  float weight_offset;  // added to the weight
};

template <typename T>
struct RmsNormBackward {
  const T* dnormed;
  const T* dsum;  // added to dx; null: none
  const T* x;     // what was normed
  const T* weight;
  const float* rstd;
  T* dx;           // dense rows
  float* dweight;  // [columns], added to
  int64_t dnormed_stride;
  int64_t dsum_stride;
  int64_t x_stride;
  int64_t columns;
  float weight_offset;
};

// Rows [begin, end) on the calling thread.
template <typename T>
void rms_norm_forward(const RmsNormForward<T>&, int64_t begin, int64_t end);
template <typename T>
void rms_norm_backward(const RmsNormBackward<T>&, int64_t begin, int64_t end);

}  // namespace brigade::ops
