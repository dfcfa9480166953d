// Flat tensors that can give their memory back and take some again, while views
// of them, autograd's saved ones included, stay what they are: they share the
// storage, whose memory comes and goes.
//
// On the CPU the memory is mapped for the tensor alone and unmapped when it is
// released, so that it is the system's at once; on other devices it is the
// device's allocator's.
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace brigade::ops {

// [numel], with memory. Throws c10::Error when there is none left.
torch::Tensor make_releasable(
    int64_t numel,
    const torch::TensorOptions& options);

// The rest is for tensors that make_releasable() made, and raises no version of
// autograd's.

// Gives the memory back: values are lost, and nothing may read or write the
// tensor or its views until restore(). Does nothing when there is none.
void release(const torch::Tensor& flat);
// Memory again, of undefined values. Does nothing where there is some.
void restore(const torch::Tensor& flat);
bool is_released(const torch::Tensor& flat);

// `to` takes the memory of `from`, which is released: no page is given back and
// faulted in again. Precondition: `to` is released, and as many bytes long.
void move_memory(const torch::Tensor& from, const torch::Tensor& to);

}  // namespace brigade::ops
