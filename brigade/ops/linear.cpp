#include "brigade/ops/linear.h"

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "linear";

void check(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  require(
      x.dim() >= 1 && weight.dim() == 2 && x.size(-1) == weight.size(1) &&
          x.scalar_type() == weight.scalar_type(),
      kOp,
      "x {} and weight {} do not fit: expected [.., in] and [out, in] of one "
      "dtype",
      describe(x),
      describe(weight));
  require(
      !bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
      kOp,
      "bias {} does not fit weight {}",
      describe(bias),
      describe(weight));
}

Tensor rows(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

void accumulate(
    const LinearOptions& options,
    const Tensor& output_grad,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias) {
  const auto compute = [=] {
    if (weight.requires_grad())
      linear_backward_weight(output_grad, x, accumulation_target(kOp, weight));
    if (bias.defined() && bias.requires_grad())
      accumulation_target("linear bias", bias)
          .add_(rows(output_grad).sum(0, false, torch::kFloat));
  };
  if (options.defer_weight_grad)
    options.defer_weight_grad(compute);
  else
    compute();
}

struct Linear : torch::autograd::Function<Linear> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& x,
      const Tensor& weight,
      const c10::optional<Tensor>& optional_bias,
      const LinearOptions& options) {
    const Tensor bias = optional_bias.value_or(Tensor());
    context->save_for_backward({x, weight, bias});
    carry(context, options);
    context->saved_data["x_needs_grad"] = x.requires_grad();
    return bias.defined() ? torch::linear(x, weight, bias)
                          : torch::linear(x, weight);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    const Tensor& weight = saved[1];
    const Tensor& bias = saved[2];
    const Tensor& output_grad = gradients[0];
    const LinearOptions& options = carried<LinearOptions>(context);
    variable_list result(4);
    if (!output_grad.defined())
      return result;
    std::function<void()> after;
    if (context->saved_data["x_needs_grad"].toBool()) {
      result[0] = linear_backward_input(output_grad, weight);
      if (options.on_input_grad)
        after = options.on_input_grad(result[0]);
    }
    if (options.weight_grad == WeightGrad::kAccumulate) {
      accumulate(options, output_grad, x, weight, bias);
    } else {
      if (weight.requires_grad()) {
        result[1] = torch::zeros_like(weight);
        linear_backward_weight(output_grad, x, result[1]);
      }
      if (bias.defined() && bias.requires_grad())
        result[2] = rows(output_grad).sum(0);
    }
    if (after)
      after();
    return result;
  }
};

}  // namespace

Tensor linear(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias,
    const LinearOptions& options) {
  check(x, weight, bias);
  require(
      !options.defer_weight_grad ||
          options.weight_grad == WeightGrad::kAccumulate,
      kOp,
      "defer_weight_grad needs WeightGrad::kAccumulate");
  if (options.weight_grad == WeightGrad::kAccumulate) {
    check_accumulates(kOp, weight);
    if (bias.defined())
      check_accumulates(kOp, bias);
  }
  return Linear::apply(
      x,
      weight,
      bias.defined() ? c10::optional<Tensor>(bias) : c10::nullopt,
      options);
}

Tensor linear(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias,
    WeightGrad weight_grad) {
  return linear(x, weight, bias, LinearOptions{.weight_grad = weight_grad});
}

std::vector<Tensor> linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options) {
  require(
      biases.empty() || biases.size() == weights.size(),
      kOp,
      "a group of {} weights has {} biases",
      weights.size(),
      biases.size());
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < weights.size(); ++i)
    outputs.push_back(
        linear(x, weights[i], biases.empty() ? Tensor() : biases[i], options));
  return outputs;
}

std::vector<Tensor> linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    WeightGrad weight_grad) {
  return linear_group(
      x, weights, biases, LinearOptions{.weight_grad = weight_grad});
}

Tensor linear_backward_input(const Tensor& output_grad, const Tensor& weight) {
  return torch::matmul(output_grad, weight);
}

void linear_backward_weight(
    const Tensor& output_grad,
    const Tensor& x,
    Tensor weight_grad) {
  weight_grad.add_(torch::mm(rows(output_grad).t(), rows(x)));
}

}  // namespace brigade::ops
