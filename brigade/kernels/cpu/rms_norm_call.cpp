#include <ATen/Parallel.h>

#include <algorithm>

#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/rms_norm_kernel.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

// Rows whose weight gradients are summed together; fixed, so that the sum's
// order does not depend on the number of threads.
constexpr int64_t kRowChunk = 128;

}  // namespace

RmsNormResult CpuKernels::rms_norm(const RmsNormInputs& inputs) const {
  const Tensor& x = inputs.x;
  const bool has_residual = inputs.residual.defined();
  const Tensor rows = as_rows(x);
  const Tensor others = has_residual ? as_rows(inputs.residual) : Tensor();
  const Tensor dense_weight = inputs.weight.contiguous();
  RmsNormResult result{
      at::empty(x.sizes(), x.options()),
      has_residual ? at::empty(x.sizes(), x.options()) : x,
      at::empty({rows.size(0)}, x.options().dtype(torch::kFloat))};
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const RmsNormForward<T> kernel{
        .x = data<T>(rows),
        .residual = has_residual ? data<T>(others) : nullptr,
        .weight = data<T>(dense_weight),
        .normed = data<T>(result.normed),
        .sum = has_residual ? data<T>(result.sum) : nullptr,
        .rstd = data<float>(result.rstd),
        .x_stride = rows.stride(0),
        .residual_stride = has_residual ? others.stride(0) : 0,
        .columns = rows.size(1),
        .eps = static_cast<float>(inputs.eps),
        .weight_offset = static_cast<float>(inputs.weight_offset)};
    run_in_tasks(rows.size(0), kRowChunk, rms_norm_forward, kernel);
  });
  return result;
}

Tensor CpuKernels::rms_norm_backward(
    const RmsNormBackwardInputs& inputs) const {
  const bool has_dsum = inputs.dsum.defined();
  const Tensor gradients = as_rows(inputs.dnormed);
  const Tensor others = has_dsum ? as_rows(inputs.dsum) : Tensor();
  const Tensor rows = as_rows(inputs.x);
  const Tensor dense_weight = inputs.weight.contiguous();
  Tensor dx = at::empty(inputs.x.sizes(), inputs.x.options());
  const int64_t columns = rows.size(1);
  const int64_t chunks = (rows.size(0) + kRowChunk - 1) / kRowChunk;
  const Tensor partial = at::zeros({chunks, columns}, inputs.rstd.options());
  with_element_type(inputs.x, [&](auto element) {
    using T = decltype(element);
    const RmsNormBackward<T> kernel{
        .dnormed = data<T>(gradients),
        .dsum = has_dsum ? data<T>(others) : nullptr,
        .x = data<T>(rows),
        .weight = data<T>(dense_weight),
        .rstd = data<float>(inputs.rstd),
        .dx = data<T>(dx),
        .dweight = nullptr,
        .dnormed_stride = gradients.stride(0),
        .dsum_stride = has_dsum ? others.stride(0) : 0,
        .x_stride = rows.stride(0),
        .columns = columns,
        .weight_offset = static_cast<float>(inputs.weight_offset)};
    at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
      RmsNormBackward<T> mine = kernel;
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        mine.dweight = data<float>(partial) + chunk * columns;
        ops::rms_norm_backward(
            mine,
            chunk * kRowChunk,
            std::min(rows.size(0), (chunk + 1) * kRowChunk));
      }
    });
  });
  Tensor(inputs.dweight).add_(partial.sum(0));
  return dx;
}

}  // namespace brigade::ops
