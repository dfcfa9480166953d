#include "brigade/ops/weight_grad.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>

#include "brigade/base/error.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade::ops {
namespace {

struct Accumulating : OnceDifferentiable<Accumulating> {
  static constexpr const char* kName = "WeightGrad::kAccumulate";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& weight,
      const std::string& op) {
    context->save_for_backward({weight});
    context->saved_data["op"] = op;
    return weight.detach();
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    if (gradients[0].defined()) {
      const Tensor weight = context->get_saved_variables()[0];
      accumulation_target(context->saved_data["op"].toStringRef(), weight)
          .add_(gradients[0]);
    }
    return {Tensor(), Tensor()};
  }
};

}  // namespace

void check_accumulates(std::string_view op, const Tensor& weight) {
  if (weight.is_leaf())
    return;
  throw UsageError(fmt::format(
      "[{}] WeightGrad::kAccumulate needs a leaf weight, but {} is the "
      "result of another operation; pass the parameter itself",
      op,
      describe(weight)));
}

Tensor accumulation_target(std::string_view op, const Tensor& weight) {
  const Tensor& target = weight.grad();
  if (target.defined() && target.scalar_type() == torch::kFloat &&
      target.is_contiguous() && target.sizes() == weight.sizes())
    return target;
  throw UsageError(fmt::format(
      "[{}] WeightGrad::kAccumulate adds to weight.grad(), which must be a "
      "contiguous float32 tensor of the weight's shape; the weight is {}, "
      "its grad is {}; wrap the module in DataParallel or set .grad()",
      op,
      describe(weight),
      describe(target)));
}

Tensor accumulating(std::string_view op, const Tensor& weight) {
  if (!weight.requires_grad())
    return weight;
  check_accumulates(op, weight);
  return Accumulating::apply(weight, std::string(op));
}

}  // namespace brigade::ops
