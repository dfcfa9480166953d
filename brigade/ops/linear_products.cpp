#include "brigade/ops/linear_products.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"
#include "brigade/ops/weight_grad.h"

namespace brigade::ops {
namespace {

std::vector<Tensor> forward_together(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const SideBySide& matrix,
    const KernelSet& kernels) {
  Tensor bias;
  for (size_t i = 0; i < biases.size(); ++i) {
    if (!biases[i].defined())
      continue;
    if (!bias.defined())
      bias = at::zeros({matrix.columns}, x.options());
    bias.narrow(0, matrix.column[i], biases[i].size(0)).copy_(biases[i]);
  }
  const Tensor rows = as_rows(x);
  const Tensor buffer = at::empty({rows.size(0), matrix.columns}, x.options());
  kernels.linear(buffer, rows, matrix.whole, bias);
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto sizes = with_last(x.sizes(), weights[i].size(0));
    std::vector<int64_t> strides(sizes.size(), 1);
    int64_t stride = matrix.columns;
    for (auto dim = static_cast<int64_t>(sizes.size()) - 2; dim >= 0; --dim) {
      strides[dim] = stride;
      stride *= sizes[dim];
    }
    outputs.push_back(slice_of(buffer, sizes, strides, matrix.column[i]));
  }
  return outputs;
}

// Gradients in the columns of `matrix`: as they lie, or copied so.
SideBySide arranged(
    const std::vector<Tensor>& gradients,
    const SideBySide& matrix) {
  auto as_they_lie = side_by_side(gradients);
  if (as_they_lie && as_they_lie->column == matrix.column)
    return *as_they_lie;
  SideBySide copied{
      matrix.column,
      matrix.columns,
      at::empty(
          {gradients[0].size(0), matrix.columns}, gradients[0].options())};
  for (size_t i = 0; i < gradients.size(); ++i)
    copied.whole.narrow(1, matrix.column[i], gradients[i].size(1))
        .copy_(gradients[i]);
  return copied;
}

}  // namespace

std::optional<SideBySide> as_one_matrix(
    const std::vector<Tensor>& weights,
    WeightGroup group) {
  if (group == WeightGroup::kSeparate || weights.size() < 2)
    return std::nullopt;
  return one_below_another(weights);
}

void check_linear(
    std::string_view op,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias) {
  require(
      x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
          x.scalar_type() == weight.scalar_type(),
      op,
      "x {} and weight {} do not fit: expected [.., in] and [out, in] of one "
      "dtype",
      describe(x),
      describe(weight));
  require(
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
      op,
      "bias {} does not fit weight {}",
      describe(bias),
      describe(weight));
}

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> result = sizes.vec();
  result.back() = last;
  return result;
}

Tensor input_of(const std::vector<Tensor>& kept, const RemadeInput& input) {
  if (!input.make)
    return kept[0];
  const torch::NoGradGuard no_grad;
  return input.make(kept);
}

std::vector<Tensor> run_linear(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    WeightGroup group,
    const KernelSet& kernels) {
  if (const auto matrix = as_one_matrix(weights, group))
    return forward_together(x, weights, biases, *matrix, kernels);
  const Tensor rows = as_rows(x);
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < weights.size(); ++i) {
    Tensor out =
        at::empty(with_last(x.sizes(), weights[i].size(0)), x.options());
    kernels.linear(
        out.view({rows.size(0), weights[i].size(0)}),
        rows,
        weights[i],
        biases[i].defined() ? biases[i].contiguous() : Tensor());
    outputs.push_back(out);
  }
  return outputs;
}

OutputGrads output_grads(
    const std::vector<Tensor>& gradients,
    const std::vector<Tensor>& weights,
    WeightGroup group,
    int64_t rows) {
  OutputGrads result;
  for (size_t i = 0; i < gradients.size(); ++i) {
    result.rows.push_back(
        gradients[i].defined()
            ? as_rows(gradients[i])
            : at::zeros({rows, weights[i].size(0)}, weights[i].options()));
  }
  if (const auto matrix = as_one_matrix(weights, group)) {
    result.whole = arranged(result.rows, *matrix);
    result.weights = matrix->whole;
  }
  return result;
}

Tensor input_grad(
    const OutputGrads& gradients,
    const std::vector<Tensor>& weights,
    at::IntArrayRef x_sizes,
    const KernelSet& kernels) {
  const auto type = weights[0].options();
  Tensor dx = at::empty(x_sizes, type);
  Tensor rows = dx.view({-1, x_sizes.back()});
  if (gradients.whole) {
    kernels.linear_input_grad(rows, gradients.whole->whole, gradients.weights);
    return dx;
  }
  if (weights.size() == 1) {
    kernels.linear_input_grad(rows, gradients.rows[0], weights[0]);
    return dx;
  }
  sum_input_grads(rows, gradients, weights, kernels);
  return dx;
}

void sum_input_grads(
    Tensor dx,
    const OutputGrads& gradients,
    const std::vector<Tensor>& weights,
    const KernelSet& kernels) {
  const auto wide = wide_dtype(dx);
  const bool rounds = dx.scalar_type() != wide;
  Tensor sum = rounds ? at::empty(dx.sizes(), dx.options().dtype(wide)) : dx;
  for (size_t i = 0; i < weights.size(); ++i)
    kernels.multiply(
        sum,
        gradients.rows[i],
        weights[i],
        i == 0 ? Destination::kOverwrite : Destination::kAdd);
  if (rounds)
    dx.copy_(sum);
}

void accumulate_weights(
    const OutputGrads& gradients,
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    std::string_view op,
    const KernelSet& kernels) {
  const Tensor rows = as_rows(x);
  std::vector<Tensor> targets;
  bool all = true;
  for (const Tensor& weight : weights) {
    all = all && weight.requires_grad();
    targets.push_back(
        weight.requires_grad() ? accumulation_target(op, weight) : Tensor());
  }
  const auto matrix =
      all && gradients.whole ? one_below_another(targets) : std::nullopt;
  if (matrix && matrix->column == gradients.whole->column) {
    kernels.linear_weight_grad(matrix->whole, gradients.whole->whole, rows);
  } else {
    for (size_t i = 0; i < weights.size(); ++i) {
      if (targets[i].defined())
        kernels.linear_weight_grad(targets[i], gradients.rows[i], rows);
    }
  }
  for (size_t i = 0; i < biases.size(); ++i) {
    if (biases[i].defined() && biases[i].requires_grad())
      accumulation_target("linear bias", biases[i])
          .add_(gradients.rows[i].sum(0, false, wide_dtype(gradients.rows[i])));
  }
}

}  // namespace brigade::ops
