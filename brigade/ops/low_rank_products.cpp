#include "brigade/ops/low_rank_products.h"

#include "brigade/ops/rows.h"
#include "brigade/ops/weight_grad.h"

namespace brigade::ops {
namespace {

// x a^T for each adapter, [rows, rank].
std::vector<Tensor> products_of(
    const Tensor& rows,
    const std::vector<Tensor>& a,
    const LowRankSaved& saved) {
  if (!saved.dropped.is_used())
    return run_linear(
        rows,
        a,
        std::vector<Tensor>(a.size()),
        saved.options.group,
        *saved.kernels);
  std::vector<Tensor> result;
  for (size_t i = 0; i < a.size(); ++i)
    result.push_back(run_linear(
        saved.dropped.left_of(rows, i),
        {a[i]},
        {Tensor()},
        WeightGroup::kSeparate,
        *saved.kernels)[0]);
  return result;
}

void accumulate_a(
    const OutputGrads& gradients,
    const Tensor& rows,
    const std::vector<Tensor>& a,
    const LowRankDropped& dropped,
    const KernelSet& kernels) {
  if (!dropped.is_used()) {
    accumulate_weights(gradients, rows, a, {}, kLowRankOp, kernels);
    return;
  }
  for (size_t i = 0; i < a.size(); ++i)
    accumulate_weights(
        {.rows = {gradients.rows[i]}, .whole = {}, .weights = {}},
        dropped.left_of(rows, i),
        {a[i]},
        {},
        kLowRankOp,
        kernels);
}

}  // namespace

std::vector<Tensor> scaled_products(
    const Tensor& x,
    const std::vector<Tensor>& a,
    const LowRankSaved& saved) {
  std::vector<Tensor> result = products_of(as_rows(x), a, saved);
  for (size_t i = 0; i < a.size(); ++i)
    result[i].mul_(saved.scales[i]);
  return result;
}

LowRankKept split_low_rank(
    const std::vector<Tensor>& tensors,
    const LowRankSaved& saved) {
  auto next = tensors.begin();
  const auto take = [&](size_t count) {
    const auto begin = next;
    next += static_cast<std::ptrdiff_t>(count);
    return std::vector<Tensor>(begin, next);
  };
  const size_t adapters = saved.adapted.size();
  LowRankKept kept;
  kept.weights = take(saved.weights);
  kept.a = take(adapters);
  kept.b = take(adapters);
  kept.h = take(adapters);
  kept.input.assign(next, tensors.end());
  return kept;
}

LowRankParts low_rank_parts(
    const OutputGrads& outputs,
    const LowRankKept& kept,
    const LowRankSaved& saved) {
  LowRankParts parts;
  std::vector<Tensor> of_h;
  for (size_t i = 0; i < kept.b.size(); ++i) {
    const Tensor& dy = outputs.rows[saved.adapted[i]];
    const Tensor dh = at::empty(kept.h[i].sizes(), dy.options());
    saved.kernels->multiply(dh, dy, kept.b[i], Destination::kOverwrite);
    of_h.push_back(dh.mul_(saved.scales[i]));
    parts.outputs.push_back(dy);
  }
  const int64_t rows = parts.outputs.front().size(0);
  parts.a = output_grads(of_h, kept.a, saved.options.group, rows);
  return parts;
}

void add_low_rank_input_grads(
    const LowRankParts& parts,
    const LowRankKept& kept,
    const LowRankSaved& saved,
    Tensor dx) {
  for (size_t i = 0; i < kept.a.size(); ++i) {
    const Tensor& dh = parts.a.rows[i];
    if (!saved.dropped.is_used()) {
      saved.kernels->multiply(dx, dh, kept.a[i], Destination::kAdd);
      continue;
    }
    const Tensor part = at::empty(dx.sizes(), dx.options());
    saved.kernels->multiply(part, dh, kept.a[i], Destination::kOverwrite);
    saved.dropped.drop(part, i);
    dx.add_(part);
  }
}

void accumulate_low_rank(
    const LowRankParts& parts,
    const LowRankKept& kept,
    const LowRankSaved& saved) {
  // Made now: what it is made of may take more memory until then.
  const auto compute = [parts,
                        input = input_of(kept.input, saved.options.input),
                        a = kept.a,
                        b = kept.b,
                        h = kept.h,
                        dropped = saved.dropped,
                        kernels = saved.kernels] {
    const torch::NoGradGuard no_grad;
    accumulate_a(parts.a, as_rows(input), a, dropped, *kernels);
    for (size_t i = 0; i < b.size(); ++i) {
      if (b[i].requires_grad())
        kernels->linear_weight_grad(
            accumulation_target(kLowRankOp, b[i]), parts.outputs[i], h[i]);
    }
  };
  if (saved.options.defer_weight_grad)
    saved.options.defer_weight_grad(compute);
  else
    compute();
}

void return_low_rank(
    const LowRankParts& parts,
    const LowRankKept& kept,
    const LowRankSaved& saved,
    std::vector<Tensor>& result) {
  const Tensor rows = as_rows(input_of(kept.input, saved.options.input));
  const auto product = [&](const Tensor& weight,
                           const Tensor& gradient,
                           const Tensor& input) {
    if (!weight.requires_grad())
      return Tensor();
    Tensor into = at::empty(weight.sizes(), weight.options());
    saved.kernels->multiply(into, gradient.t(), input, Destination::kOverwrite);
    return into;
  };
  const size_t first = 1 + saved.weights;
  const size_t adapters = kept.a.size();
  for (size_t i = 0; i < adapters; ++i) {
    result[first + i] =
        product(kept.a[i], parts.a.rows[i], saved.dropped.left_of(rows, i));
    result[first + adapters + i] =
        product(kept.b[i], parts.outputs[i], kept.h[i]);
  }
}

}  // namespace brigade::ops
