#include "brigade/ops/linear.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/rows.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLinearOp = "linear";

void check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require(
      x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
          x.scalar_type() == weight.scalar_type(),
      kLinearOp,
      "x {} and weight {} do not fit: expected [.., in] and [out, in] of one "
      "dtype",
      describe(x),
      describe(weight));
  require(
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
      kLinearOp,
      "bias {} does not fit weight {}",
      describe(bias),
      describe(weight));
}

// x [M, in], weight [out, in] and y [M, out], in whichever direction.
void check_products(const Tensor& x, const Tensor& weight, const Tensor& y) {
  require(
      x.size(0) == y.size(0) && x.size(1) == weight.size(1) &&
          y.size(1) == weight.size(0),
      kLinearOp,
      "input {}, weight {} and output {} do not fit: expected [M, in], "
      "[out, in] and [M, out]",
      describe(x),
      describe(weight),
      describe(y));
}

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> result = sizes.vec();
  result.back() = last;
  return result;
}

// The weights as the one matrix that they were declared to be, if they are.
std::optional<SideBySide> as_one_matrix(
    const std::vector<Tensor>& weights,
    WeightGroup group) {
  if (group == WeightGroup::kSeparate || weights.size() < 2)
    return std::nullopt;
  return one_below_another(weights);
}

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

// What backward works with: gradients as rows, and as one matrix where both
// they and the weights lie side by side in the same order.
struct OutputGrads {
  std::vector<Tensor> rows;  // [M, out_i]
  std::optional<SideBySide> whole;
  Tensor weights;  // [sum of out, in], where there is a whole
};

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

OutputGrads output_grads(
    const variable_list& gradients,
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
  // Summed in the wide dtype, rounded once.
  const auto wide = wide_dtype(rows);
  const bool rounds = rows.scalar_type() != wide;
  Tensor sum = rounds ? at::empty(rows.sizes(), type.dtype(wide)) : rows;
  for (size_t i = 0; i < weights.size(); ++i)
    kernels.multiply(
        sum,
        gradients.rows[i],
        weights[i],
        i == 0 ? Destination::kOverwrite : Destination::kAdd);
  if (rounds)
    rows.copy_(sum);
  return dx;
}

// Adds each weight's gradient to its main_grad, in one product where the
// main_grads lie as the gradients do.
void accumulate_weights(
    const OutputGrads& gradients,
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const KernelSet& kernels) {
  const Tensor rows = as_rows(x);
  std::vector<Tensor> targets;
  bool all = true;
  for (const Tensor& weight : weights) {
    all = all && weight.requires_grad();
    targets.push_back(
        weight.requires_grad() ? accumulation_target(kLinearOp, weight)
                               : Tensor());
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

struct LinearSaved {
  LinearOptions options;
  const KernelSet* kernels;
  size_t weights;
  std::vector<bool> has_bias;
  std::vector<int64_t> x_sizes;
  bool x_has_gradient;
};

struct LinearNode : OnceDifferentiable<LinearNode> {
  static constexpr const char* kName = "linear";

  // tensors: x, the weights, the biases that are defined.
  static variable_list forward(
      AutogradContext* context,
      at::TensorList tensors,
      const LinearSaved& saved) {
    // The weights and biases, then x or what it is made of.
    std::vector<Tensor> kept(tensors.begin() + 1, tensors.end());
    const Groups groups = split(kept, saved);
    if (saved.options.input.make)
      kept.insert(
          kept.end(),
          saved.options.input.from.begin(),
          saved.options.input.from.end());
    else
      kept.push_back(tensors[0]);
    context->save_for_backward(kept);
    // Saved variables are given back after backward, this is not.
    carry(context, saved).options.input.from.clear();
    return run_linear(
        tensors[0],
        groups.weights,
        groups.biases,
        saved.options.group,
        *saved.kernels);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const LinearSaved& saved = carried<LinearSaved>(context);
    const auto tensors = context->get_saved_variables();
    const Groups groups = split(tensors, saved);
    // As many as forward's tensors, and the options.
    variable_list result(2 + saved.weights + count_biases(saved));
    bool any = false;
    for (const Tensor& gradient : gradients)
      any = any || gradient.defined();
    if (!any)
      return result;
    const int64_t rows =
        c10::multiply_integers(saved.x_sizes.begin(), saved.x_sizes.end() - 1);
    const OutputGrads outputs =
        output_grads(gradients, groups.weights, saved.options.group, rows);
    std::function<void()> after;
    if (saved.x_has_gradient) {
      const Observed observed(
          "brigade::linear_backward", gradients, groups.weights);
      result[0] =
          input_grad(outputs, groups.weights, saved.x_sizes, *saved.kernels);
      if (saved.options.on_input_grad)
        after = saved.options.on_input_grad(result[0]);
    }
    if (saved.options.weight_grad == WeightGrad::kAccumulate)
      accumulate(outputs, groups, saved);
    else
      return_weights(outputs, groups, saved, result);
    if (after)
      after();
    return result;
  }

 private:
  struct Groups {
    std::vector<Tensor> weights;
    std::vector<Tensor> biases;  // as many as weights
    std::vector<Tensor> input;   // x, or what it is made of
  };

  static size_t count_biases(const LinearSaved& saved) {
    return static_cast<size_t>(
        std::count(saved.has_bias.begin(), saved.has_bias.end(), true));
  }

  // tensors: the weights, the biases that are defined, those of the input.
  static Groups split(
      const std::vector<Tensor>& tensors,
      const LinearSaved& saved) {
    Groups groups;
    size_t next = saved.weights;
    for (size_t i = 0; i < saved.weights; ++i) {
      groups.weights.push_back(tensors[i]);
      groups.biases.push_back(saved.has_bias[i] ? tensors[next++] : Tensor());
    }
    groups.input.assign(
        tensors.begin() + static_cast<std::ptrdiff_t>(next), tensors.end());
    return groups;
  }

  static Tensor input_of(const Groups& groups, const LinearOptions& options) {
    if (!options.input.make)
      return groups.input[0];
    const torch::NoGradGuard no_grad;
    return options.input.make(groups.input);
  }

  static void accumulate(
      const OutputGrads& outputs,
      const Groups& groups,
      const LinearSaved& saved) {
    const LinearOptions& options = saved.options;
    // Made now: what it is made of may take more memory until then.
    const auto compute = [outputs,
                          input = input_of(groups, options),
                          weights = groups.weights,
                          biases = groups.biases,
                          kernels = saved.kernels] {
      const torch::NoGradGuard no_grad;
      accumulate_weights(outputs, input, weights, biases, *kernels);
    };
    if (options.defer_weight_grad)
      options.defer_weight_grad(compute);
    else
      compute();
  }

  static void return_weights(
      const OutputGrads& outputs,
      const Groups& groups,
      const LinearSaved& saved,
      variable_list& result) {
    const Tensor rows = as_rows(input_of(groups, saved.options));
    size_t bias = 1 + saved.weights;
    for (size_t i = 0; i < saved.weights; ++i) {
      const Tensor& weight = groups.weights[i];
      if (weight.requires_grad()) {
        result[1 + i] = at::empty(weight.sizes(), weight.options());
        saved.kernels->multiply(
            result[1 + i], outputs.rows[i].t(), rows, Destination::kOverwrite);
      }
      if (!saved.has_bias[i])
        continue;
      if (groups.biases[i].requires_grad())
        result[bias] = outputs.rows[i].sum(0);
      ++bias;
    }
  }
};

}  // namespace

std::vector<Tensor> linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options) {
  const bool accumulates = options.weight_grad == WeightGrad::kAccumulate;
  require(
      biases.empty() || biases.size() == weights.size(),
      kLinearOp,
      "a group of {} weights has {} biases",
      weights.size(),
      biases.size());
  require(
      !options.defer_weight_grad || accumulates,
      kLinearOp,
      "defer_weight_grad needs WeightGrad::kAccumulate");
  if (weights.empty())
    return {};
  LinearSaved saved{
      options,
      &choose_kernels(kLinearOp, options.kernels, {&x, &weights[0]}),
      weights.size(),
      {},
      x.sizes().vec(),
      x.requires_grad()};
  std::vector<Tensor> tensors{x};
  tensors.insert(tensors.end(), weights.begin(), weights.end());
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor bias = biases.empty() ? Tensor() : biases[i];
    check_linear(x, weights[i], bias);
    if (accumulates && weights[i].requires_grad())
      check_accumulates(kLinearOp, weights[i]);
    if (accumulates && bias.defined() && bias.requires_grad())
      check_accumulates("linear bias", bias);
    saved.has_bias.push_back(bias.defined());
    if (bias.defined())
      tensors.push_back(bias);
  }
  const Observed observed("brigade::linear", tensors);
  return LinearNode::apply(at::TensorList(tensors), saved);
}

std::vector<Tensor> linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const OpOptions& options) {
  return linear_group(
      x,
      weights,
      biases,
      LinearOptions{
          .weight_grad = options.weight_grad, .kernels = options.kernels});
}

Tensor linear(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias,
    const LinearOptions& options) {
  return linear_group(x, {weight}, {bias}, options)[0];
}

Tensor linear(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias,
    const OpOptions& options) {
  return linear_group(x, {weight}, {bias}, options)[0];
}

Tensor linear_backward_input(
    const Tensor& output_grad,
    const Tensor& weight,
    Kernels kernels) {
  const torch::NoGradGuard no_grad;
  const Tensor rows = as_rows(output_grad);
  Tensor dx = at::empty(
      with_last(output_grad.sizes(), weight.size(1)), output_grad.options());
  const Tensor dx_rows = dx.view({rows.size(0), weight.size(1)});
  check_products(dx_rows, weight, rows);
  choose_kernels(kLinearOp, kernels, {&rows, &weight})
      .linear_input_grad(dx_rows, rows, weight);
  return dx;
}

void linear_backward_weight(
    const Tensor& output_grad,
    const Tensor& x,
    Tensor weight_grad,
    Kernels kernels) {
  const torch::NoGradGuard no_grad;
  const Tensor gradient_rows = as_rows(output_grad);
  const Tensor rows = as_rows(x);
  check_products(rows, weight_grad, gradient_rows);
  choose_kernels(kLinearOp, kernels, {&gradient_rows, &rows})
      .linear_weight_grad(weight_grad, gradient_rows, rows);
}

}  // namespace brigade::ops
