// Tensors as the kernels see them: rows of a dense last dim, a fixed stride
// apart; bf16 as uint16_t.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <type_traits>

namespace brigade::ops {

// Whether the CPU kernels take this tensor; the plain twin serves the rest.
inline bool has_kernel(const torch::Tensor& x) {
  return x.device().is_cpu() && (x.scalar_type() == torch::kFloat ||
                                 x.scalar_type() == torch::kBFloat16);
}

// [.., C] as [rows, C] with a dense last dim; copies only what is not so laid
// out already.
inline torch::Tensor as_rows(const torch::Tensor& x) {
  if (x.dim() == 2 && (x.size(1) <= 1 || x.stride(1) == 1))
    return x;
  const torch::Tensor rows = x.reshape({-1, x.size(-1)});
  return rows.size(1) > 1 && rows.stride(1) != 1 ? rows.contiguous() : rows;
}

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

// A raw alias: part of a buffer as a tensor of its own, unknown to autograd's
// view tracking (outputs of one node may then lie in one buffer).
inline torch::Tensor slice_of(
    const torch::Tensor& buffer,
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    int64_t offset) {
  torch::Tensor slice = at::empty({0}, buffer.options());
  slice.unsafeGetTensorImpl()->set_storage_keep_dtype(buffer.storage());
  slice.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  slice.unsafeGetTensorImpl()->set_storage_offset(
      buffer.storage_offset() + offset);
  return slice;
}

}  // namespace brigade::ops
