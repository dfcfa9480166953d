#include "brigade/ops/rms_norm.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "brigade/kernels/aten/plain.h"
#include "brigade/kernels/cpu/rms_norm_kernel.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "rms_norm";
// Rows whose weight gradients are summed together; fixed, so that the sum's
// order does not depend on the number of threads.
constexpr int64_t kRowChunk = 128;

void check(const Tensor& x, const Tensor& weight) {
  require(
      x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
      kOp,
      "x {} and weight {} differ in their last dim",
      describe(x),
      describe(weight));
}

struct Options {
  double eps;
  WeightGrad weight_grad;
};

struct Forward {
  Tensor normed;
  Tensor sum;   // x itself without a residual
  Tensor rstd;  // float32 [rows]
};

Forward run_forward(
    const Tensor& x,
    const Tensor* residual,
    const Tensor& weight,
    double eps) {
  const Tensor rows = as_rows(x);
  const Tensor others = residual == nullptr ? Tensor() : as_rows(*residual);
  const Tensor dense_weight = weight.contiguous();
  Forward result{
      at::empty(x.sizes(), x.options()),
      residual == nullptr ? x : at::empty(x.sizes(), x.options()),
      at::empty({rows.size(0)}, x.options().dtype(torch::kFloat))};
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const RmsNormForward<T> kernel{
        .x = data<T>(rows),
        .residual = residual == nullptr ? nullptr : data<T>(others),
        .weight = data<T>(dense_weight),
        .normed = data<T>(result.normed),
        .sum = residual == nullptr ? nullptr : data<T>(result.sum),
        .rstd = data<float>(result.rstd),
        .x_stride = rows.stride(0),
        .residual_stride = residual == nullptr ? 0 : others.stride(0),
        .columns = rows.size(1),
        .eps = static_cast<float>(eps)};
    at::parallel_for(
        0, rows.size(0), kRowChunk, [&](int64_t begin, int64_t end) {
          rms_norm_forward(kernel, begin, end);
        });
  });
  return result;
}

// Returns dx; adds the weight's gradient to dweight, float32 [C].
Tensor run_backward(
    const Tensor& dnormed,
    const Tensor& dsum,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& rstd,
    Tensor dweight) {
  const Tensor gradients = as_rows(dnormed);
  const Tensor others = dsum.defined() ? as_rows(dsum) : Tensor();
  const Tensor rows = as_rows(x);
  const Tensor dense_weight = weight.contiguous();
  Tensor dx = at::empty(x.sizes(), x.options());
  const int64_t columns = rows.size(1);
  const int64_t chunks = (rows.size(0) + kRowChunk - 1) / kRowChunk;
  const Tensor partial = at::zeros({chunks, columns}, rstd.options());
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    RmsNormBackward<T> kernel{
        .dnormed = data<T>(gradients),
        .dsum = dsum.defined() ? data<T>(others) : nullptr,
        .x = data<T>(rows),
        .weight = data<T>(dense_weight),
        .rstd = data<float>(rstd),
        .dx = data<T>(dx),
        .dweight = nullptr,
        .dnormed_stride = gradients.stride(0),
        .dsum_stride = dsum.defined() ? others.stride(0) : 0,
        .x_stride = rows.stride(0),
        .columns = columns};
    at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
      RmsNormBackward<T> mine = kernel;
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        mine.dweight = data<float>(partial) + chunk * columns;
        rms_norm_backward(
            mine,
            chunk * kRowChunk,
            std::min(rows.size(0), (chunk + 1) * kRowChunk));
      }
    });
  });
  dweight.add_(partial.sum(0));
  return dx;
}

struct Node : torch::autograd::Function<Node> {
  // Returns {normed} or, with a residual, {normed, sum}.
  static variable_list forward(
      AutogradContext* context,
      const Tensor& x,
      const Tensor& weight,
      const c10::optional<Tensor>& residual,
      const Options& options) {
    const Forward result =
        run_forward(x, residual ? &*residual : nullptr, weight, options.eps);
    carry(context, options);
    context->save_for_backward({result.sum, weight, result.rstd});
    if (!residual)
      return {result.normed};
    return {result.normed, result.sum};
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& weight = saved[1];
    const bool has_residual = gradients.size() == 2;
    const Tensor dsum = has_residual ? gradients[1] : Tensor();
    variable_list result(4);
    if (!gradients[0].defined()) {
      result[0] = dsum;
      if (has_residual)
        result[2] = dsum;
      return result;
    }
    const bool accumulate =
        carried<Options>(context).weight_grad == WeightGrad::kAccumulate;
    const bool wanted = weight.requires_grad();
    Tensor dweight = wanted && accumulate
                         ? accumulation_target(kOp, weight)
                         : at::zeros(weight.sizes(), saved[2].options());
    result[0] =
        run_backward(gradients[0], dsum, saved[0], weight, saved[2], dweight);
    if (has_residual)
      result[2] = result[0];
    if (wanted && !accumulate)
      result[1] = dweight.to(weight.scalar_type());
    return result;
  }
};

bool kernel_fits(const Tensor& x, const Tensor& weight) {
  return has_kernel(x) && weight.scalar_type() == x.scalar_type() &&
         x.size(-1) > 0;
}

Tensor plain_weight(const Tensor& weight, WeightGrad weight_grad) {
  return weight_grad == WeightGrad::kReturn ? weight
                                            : accumulating(kOp, weight);
}

}  // namespace

Tensor rms_norm(
    const Tensor& x,
    const Tensor& weight,
    double eps,
    WeightGrad weight_grad) {
  check(x, weight);
  if (!kernel_fits(x, weight))
    return plain::rms_norm(x, plain_weight(weight, weight_grad), eps);
  if (weight_grad == WeightGrad::kAccumulate)
    check_accumulates(kOp, weight);
  return Node::apply(
      x, weight, c10::optional<Tensor>(), Options{eps, weight_grad})[0];
}

std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    double eps,
    WeightGrad weight_grad) {
  check(x, weight);
  require(
      x.sizes() == residual.sizes() &&
          x.scalar_type() == residual.scalar_type(),
      "add_rms_norm",
      "x {} and residual {} differ",
      describe(x),
      describe(residual));
  if (!kernel_fits(x, weight))
    return plain::add_rms_norm(
        x, residual, plain_weight(weight, weight_grad), eps);
  if (weight_grad == WeightGrad::kAccumulate)
    check_accumulates(kOp, weight);
  const auto outputs = Node::apply(
      x, weight, c10::optional<Tensor>(residual), Options{eps, weight_grad});
  return {outputs[0], outputs[1]};
}

}  // namespace brigade::ops
