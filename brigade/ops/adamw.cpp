#include "brigade/ops/adamw.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

constexpr const char* kAdamWOp = "adamw";

// like: of which it is to have the numel and the device.
void check_flat(
    const char* name,
    const Tensor& x,
    const Tensor& like,
    torch::ScalarType dtype = torch::kFloat) {
  require(
      x.defined() && x.is_contiguous() && x.numel() == like.numel() &&
          x.scalar_type() == dtype && x.device() == like.device(),
      kAdamWOp,
      "{} is {}, expected a contiguous {} tensor of {} elements on {}",
      name,
      describe(x),
      c10::toString(dtype),
      like.numel(),
      like.device().str());
}

}  // namespace

void adamw_step(
    const AdamWStep& step,
    const AdamWTensors& tensors,
    AfterRead after_read) {
  const torch::NoGradGuard no_grad;
  const auto& [main_grad, exp_avg, exp_avg_sq, weight, master_low] = tensors;
  check_flat("main_grad", main_grad, main_grad);
  check_flat("exp_avg", exp_avg, main_grad);
  check_flat("exp_avg_sq", exp_avg_sq, main_grad);
  const bool is_split = weight.scalar_type() == torch::kBFloat16;
  check_flat(
      "weight", weight, main_grad, is_split ? torch::kBFloat16 : torch::kFloat);
  if (is_split)
    check_flat("master_low", master_low, main_grad, torch::kShort);
  require(
      is_split || !master_low.defined(),
      kAdamWOp,
      "a float32 weight is its own master, but master_low is {}",
      describe(master_low));
  require(step.step >= 1, kAdamWOp, "step counts from 1, but is {}", step.step);
  choose_kernels(kAdamWOp, step.kernels, {&main_grad})
      .adamw_step(step, tensors, after_read);
}

Tensor sum_of_squares(const Tensor& values, Kernels kernels) {
  const torch::NoGradGuard no_grad;
  check_flat("the tensor", values, values);
  return choose_kernels("sum_of_squares", kernels, {&values})
      .sum_of_squares(values);
}

}  // namespace brigade::ops
