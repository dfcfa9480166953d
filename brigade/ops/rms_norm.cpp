#include "brigade/ops/rms_norm.h"

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade::ops {
namespace {

constexpr const char* kRmsNormOp = "rms_norm";

void check_rms_norm(const Tensor& x, const Tensor& weight) {
  require(
      x.dim() >= 1 && weight.dim() == 1 && x.size(-1) == weight.size(0),
      kRmsNormOp,
      "x {} and weight {} differ in their last dim",
      describe(x),
      describe(weight));
}

struct RmsNormSaved {
  RmsNormFormula formula;
  WeightGrad weight_grad;
  const KernelSet* kernels;
};

struct RmsNormNode : OnceDifferentiable<RmsNormNode> {
  static constexpr const char* kName = "rms_norm";

  // Returns {normed} or, with a residual, {normed, sum}.
  static variable_list forward(
      AutogradContext* context,
      const Tensor& x,
      const Tensor& weight,
      const c10::optional<Tensor>& residual,
      const RmsNormSaved& saved) {
    const RmsNormResult result = saved.kernels->rms_norm(
        {.x = x,
         .residual = residual.value_or(Tensor()),
         .weight = weight,
         .eps = saved.formula.eps,
         .weight_offset = saved.formula.weight_offset});
    carry(context, saved);
    context->save_for_backward({result.sum, weight, result.rstd});
    if (!residual)
      return {result.normed};
    return {result.normed, result.sum};
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto tensors = context->get_saved_variables();
    const Tensor& weight = tensors[1];
    const bool has_residual = gradients.size() == 2;
    const Tensor dsum = has_residual ? gradients[1] : Tensor();
    variable_list result(4);
    if (!gradients[0].defined()) {
      result[0] = dsum;
      if (has_residual)
        result[2] = dsum;
      return result;
    }
    const RmsNormSaved& saved = carried<RmsNormSaved>(context);
    const bool accumulate = saved.weight_grad == WeightGrad::kAccumulate;
    const bool wanted = weight.requires_grad();
    const Tensor dweight =
        wanted && accumulate ? accumulation_target(kRmsNormOp, weight)
                             : at::zeros(weight.sizes(), tensors[2].options());
    const Observed observed("brigade::rms_norm_backward", gradients[0], weight);
    result[0] = saved.kernels->rms_norm_backward(
        {.dnormed = gradients[0],
         .dsum = dsum,
         .x = tensors[0],
         .weight = weight,
         .rstd = tensors[2],
         .dweight = dweight,
         .weight_offset = saved.formula.weight_offset});
    if (has_residual)
      result[2] = result[0];
    if (wanted && !accumulate)
      result[1] = dweight.to(weight.scalar_type());
    return result;
  }
};

std::vector<Tensor> run(
    const Tensor& x,
    const Tensor& weight,
    const c10::optional<Tensor>& residual,
    const RmsNormFormula& formula,
    const OpOptions& options) {
  if (options.weight_grad == WeightGrad::kAccumulate && weight.requires_grad())
    check_accumulates(kRmsNormOp, weight);
  const Observed observed("brigade::rms_norm", x, weight, residual);
  return RmsNormNode::apply(
      x,
      weight,
      residual,
      RmsNormSaved{
          formula,
          options.weight_grad,
          &choose_kernels(kRmsNormOp, options.kernels, {&x, &weight})});
}

}  // namespace

Tensor rms_norm(
    const Tensor& x,
    const Tensor& weight,
    const RmsNormFormula& formula,
    const OpOptions& options) {
  check_rms_norm(x, weight);
  return run(x, weight, c10::nullopt, formula, options)[0];
}

std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    const RmsNormFormula& formula,
    const OpOptions& options) {
  check_rms_norm(x, weight);
  require(
      x.sizes() == residual.sizes() &&
          x.scalar_type() == residual.scalar_type(),
      "add_rms_norm",
      "x {} and residual {} differ",
      describe(x),
      describe(residual));
  const auto outputs = run(x, weight, residual, formula, options);
  return {outputs[0], outputs[1]};
}

}  // namespace brigade::ops
