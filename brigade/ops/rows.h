// Tensors as rows of a dense last dim, and parts of one buffer as tensors.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade::ops {

// [.., C] as [rows, C] with a dense last dim; copies only what is not laid out
// like that already.
inline torch::Tensor as_rows(const torch::Tensor& x) {
  if (x.dim() == 2 && (x.size(1) <= 1 || x.stride(1) == 1))
    return x;
  const torch::Tensor rows = x.reshape({-1, x.size(-1)});
  return rows.size(1) > 1 && rows.stride(1) != 1 ? rows.contiguous() : rows;
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
