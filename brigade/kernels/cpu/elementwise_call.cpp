// SwiGLU, the rotation of queries and keys, and the embedding.
#include <ATen/Parallel.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/elementwise_kernel.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

constexpr int64_t kRotatedTokensPerTask = 16;  // of a rotation
constexpr int64_t kEmbeddingPerTask = 64;      // rows, or columns of a gradient

}  // namespace

Tensor CpuKernels::swiglu(const Tensor& gate, const Tensor& up) const {
  const Tensor gate_rows = as_rows(gate);
  const Tensor up_rows = as_rows(up);
  Tensor out = at::empty(gate.sizes(), gate.options());
  with_element_type(gate, [&](auto element) {
    using T = decltype(element);
    const SwigluForward<T> kernel{
        .gate = data<T>(gate_rows),
        .up = data<T>(up_rows),
        .out = data<T>(out),
        .gate_stride = gate_rows.stride(0),
        .up_stride = up_rows.stride(0),
        .columns = gate_rows.size(1)};
    run_in_tasks(
        gate_rows.size(0),
        rows_per_task(kernel.columns),
        swiglu_forward,
        kernel);
  });
  return out;
}

void CpuKernels::swiglu_backward(const SwigluBackwardInputs& inputs) const {
  const Tensor& dout = inputs.dout;
  with_element_type(dout, [&](auto element) {
    using T = decltype(element);
    const SwigluBackward<T> kernel{
        .dout = data<T>(dout),
        .gate = data<T>(inputs.gate),
        .up = data<T>(inputs.up),
        .dgate = data<T>(inputs.dgate),
        .dup = data<T>(inputs.dup),
        .dout_stride = dout.stride(0),
        .gate_stride = inputs.gate.stride(0),
        .up_stride = inputs.up.stride(0),
        .dgate_stride = inputs.dgate.stride(0),
        .dup_stride = inputs.dup.stride(0),
        .columns = dout.size(1)};
    run_in_tasks(
        dout.size(0),
        rows_per_task(kernel.columns),
        ops::swiglu_backward,
        kernel);
  });
}

void CpuKernels::rotate(const RotateInputs& inputs) const {
  const Tensor x = dense(inputs.x);
  const Tensor& y = inputs.y;
  const auto& table = inputs.table;
  const Tensor cos = table ? table->cos.contiguous() : Tensor();
  const Tensor sin = table ? table->sin.contiguous() : Tensor();
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const Rotate<T> kernel{
        .x = data<T>(x),
        .y = data<T>(y),
        .x_strides = {x.stride(0), x.stride(1), x.stride(2)},
        .y_strides = {y.stride(0), y.stride(1), y.stride(2)},
        .cos = table ? data<float>(cos) : nullptr,
        .sin = table ? data<float>(sin) : nullptr,
        .sign = inputs.direction == RotaryDirection::kForward ? 1.0F : -1.0F,
        .tokens = x.size(1),
        .heads = x.size(2),
        .head_dim = x.size(3)};
    run_in_tasks(
        x.size(0) * x.size(1), kRotatedTokensPerTask, ops::rotate, kernel);
  });
}

Tensor CpuKernels::embedding(const Tensor& weight, const Tensor& ids) const {
  const Tensor table = weight.contiguous();
  const Tensor flat = ids.reshape({-1}).contiguous();
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  Tensor out = at::empty(sizes, weight.options());
  const int64_t bytes = weight.size(1) * weight.element_size();
  const auto* from = data<char>(table);
  auto* to = data<char>(out);
  const int64_t* id = data<int64_t>(flat);
  at::parallel_for(
      0, flat.numel(), kEmbeddingPerTask, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          std::memcpy(to + row * bytes, from + id[row] * bytes, bytes);
      });
  return out;
}

// Threads split the columns, so that rows of equal ids are added in the order
// of the tokens whatever the number of threads.
void CpuKernels::embedding_weight_grad(
    Tensor weight_grad,
    const Tensor& ids,
    const Tensor& gradient) const {
  const Tensor flat = ids.reshape({-1}).contiguous();
  const Tensor rows = as_rows(gradient);
  const int64_t columns = weight_grad.size(1);
  const int64_t* id = data<int64_t>(flat);
  auto* to = data<float>(weight_grad);
  with_element_type(rows, [&](auto element) {
    using T = std::conditional_t<
        std::is_same_v<decltype(element), uint16_t>,
        c10::BFloat16,
        float>;
    const T* from = data<T>(rows);
    const int64_t stride = rows.stride(0);
    at::parallel_for(
        0, columns, kEmbeddingPerTask, [&](int64_t begin, int64_t end) {
          for (int64_t row = 0; row < flat.numel(); ++row) {
            float* sum = to + id[row] * columns;
            const T* value = from + row * stride;
            for (int64_t column = begin; column < end; ++column)
              sum[column] += static_cast<float>(value[column]);
          }
        });
  });
}

}  // namespace brigade::ops
