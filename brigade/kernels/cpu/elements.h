// Tensors as the CPU kernels see them, pointers to float or uint16_t (bf16),
// and the division of a kernel's work among threads.
#pragma once

#include <ATen/Parallel.h>
#include <torch/types.h>

#include <algorithm>
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

// Calls run(call, begin, end) for parts of [0, count), of about `per_task` or
// more each, by the calling thread's team.
template <typename Call>
void run_in_tasks(
    int64_t count,
    int64_t per_task,
    void (*run)(const Call& call, int64_t begin, int64_t end),
    const Call& call) {
  at::parallel_for(0, count, per_task, [&](int64_t begin, int64_t end) {
    run(call, begin, end);
  });
}

// The rows of a task that is worth a thread: of about so many elements.
inline int64_t rows_per_task(int64_t columns, int64_t elements = 16384) {
  return std::max<int64_t>(1, elements / std::max<int64_t>(1, columns));
}

}  // namespace brigade::ops
