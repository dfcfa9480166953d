// Tensors as the CPU kernels see them: pointers to float or uint16_t (bf16).
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade::ops {

template <typename T>
T* data(const torch::Tensor& x) {
  return static_cast<T*>(x.data_ptr());
}

// Calls body(T()) with T the kernels' element type: float or uint16_t (bf16).
template <typename Body>
void with_element_type(const torch::Tensor& x, Body&& body) {
  if (x.scalar_type() == torch::kBFloat16)
    body(uint16_t());
  else
    body(float());
}

inline bool is_wide(const torch::Tensor& x) {
  return x.scalar_type() == torch::kFloat;
}

// [.., D] with a dense last dim.
inline torch::Tensor dense(const torch::Tensor& x) {
  return x.size(-1) <= 1 || x.stride(-1) == 1 ? x : x.contiguous();
}

}  // namespace brigade::ops
