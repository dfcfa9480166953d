#include "brigade/ops/linear.h"

#include <algorithm>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/linear_products.h"
#include "brigade/ops/low_rank.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/row_magnitude.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

constexpr const char* kLinearOp = "linear";

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

struct LinearSaved {
  LinearOptions options;
  const KernelSet* kernels;
  size_t weights;
  std::vector<bool> has_bias;
  std::vector<int64_t> x_sizes;
  bool x_has_gradient;
  bool trains = false;  // a weight or bias: what x is kept for
};

struct LinearNode : OnceDifferentiable<LinearNode> {
  static constexpr const char* kName = "linear";

  // tensors: x, the weights, the biases that are defined.
  static variable_list forward(
      AutogradContext* context,
      at::TensorList tensors,
      const LinearSaved& saved) {
    // The weights and biases, then x or what it is made of, if needed.
    std::vector<Tensor> kept(tensors.begin() + 1, tensors.end());
    const Groups groups = split(kept, saved);
    if (saved.trains && saved.options.input.make)
      kept.insert(
          kept.end(),
          saved.options.input.from.begin(),
          saved.options.input.from.end());
    else if (saved.trains)
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
    if (saved.trains && saved.options.weight_grad == WeightGrad::kAccumulate)
      accumulate(outputs, groups, saved);
    else if (saved.trains)
      return_weights(outputs, groups, saved, result);
    if (after)
      after();
    return result;
  }

 private:
  struct Groups {
    std::vector<Tensor> weights;
    std::vector<Tensor> biases;  // as many as weights
    std::vector<Tensor> input;   // x, or what it is made of; empty: unused
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

  static void accumulate(
      const OutputGrads& outputs,
      const Groups& groups,
      const LinearSaved& saved) {
    const LinearOptions& options = saved.options;
    // Made now: what it is made of may take more memory until then.
    const auto compute = [outputs,
                          input = input_of(groups.input, options.input),
                          weights = groups.weights,
                          biases = groups.biases,
                          kernels = saved.kernels] {
      const torch::NoGradGuard no_grad;
      accumulate_weights(outputs, input, weights, biases, kLinearOp, *kernels);
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
    const Tensor rows = as_rows(input_of(groups.input, saved.options.input));
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
  if (has_magnitude(options.adapters))
    return magnitude_linear_group(x, weights, biases, options);
  if (has_low_rank(options.adapters))
    return low_rank_linear_group(x, weights, biases, options);
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
    check_linear(kLinearOp, x, weights[i], bias);
    if (accumulates && weights[i].requires_grad())
      check_accumulates(kLinearOp, weights[i]);
    if (accumulates && bias.defined() && bias.requires_grad())
      check_accumulates("linear bias", bias);
    saved.has_bias.push_back(bias.defined());
    if (bias.defined())
      tensors.push_back(bias);
  }
  saved.trains =
      std::any_of(tensors.begin() + 1, tensors.end(), [](const Tensor& each) {
        return each.requires_grad();
      });
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
