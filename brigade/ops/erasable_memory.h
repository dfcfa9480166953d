// Tensors whose ranges can be emptied: their values become zero, and their
// memory is the system's until something is written there again.
//
// On the CPU, pages are given back and come back zeroed; a range's first and
// last page only where the range covers them. Tensors on other devices are
// zeroed and keep their memory.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade::ops {

// [numel], zero. Throws c10::Error when the address space has no such range.
torch::Tensor make_erasable(int64_t numel, const torch::TensorOptions& options);

// `range`: contiguous, of a tensor that make_erasable() made. Not recorded by
// autograd; raises no version.
void erase(const torch::Tensor& range);

}  // namespace brigade::ops
