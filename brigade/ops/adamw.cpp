#include "brigade/ops/adamw.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

constexpr const char* kAdamWOp = "adamw";

void check_flat(
    const char* name,
    const Tensor& x,
    int64_t numel,
    torch::ScalarType dtype = torch::kFloat) {
  require(
      x.defined() && x.is_contiguous() && x.numel() == numel &&
          x.scalar_type() == dtype,
      kAdamWOp,
      "{} is {}, expected a contiguous {} tensor of {} elements",
      name,
      describe(x),
      c10::toString(dtype),
      numel);
}

}  // namespace

void adamw_step(
    const AdamWStep& step,
    Tensor main_grad,
    Tensor exp_avg,
    Tensor exp_avg_sq,
    Tensor weight,
    Tensor master_low,
    AfterRead after_read) {
  const torch::NoGradGuard no_grad;
  const int64_t numel = main_grad.numel();
  check_flat("main_grad", main_grad, numel);
  check_flat("exp_avg", exp_avg, numel);
  check_flat("exp_avg_sq", exp_avg_sq, numel);
  const bool is_split = weight.scalar_type() == torch::kBFloat16;
  check_flat(
      "weight", weight, numel, is_split ? torch::kBFloat16 : torch::kFloat);
  if (is_split)
    check_flat("master_low", master_low, numel, torch::kShort);
  require(
      is_split || !master_low.defined(),
      kAdamWOp,
      "a float32 weight is its own master, but master_low is {}",
      describe(master_low));
  require(step.step >= 1, kAdamWOp, "step counts from 1, but is {}", step.step);
  choose_kernels(kAdamWOp, step.kernels, {&main_grad})
      .adamw_step(
          step,
          {main_grad, exp_avg, exp_avg_sq, weight, master_low},
          after_read);
}

Tensor sum_of_squares(const Tensor& values, Kernels kernels) {
  const torch::NoGradGuard no_grad;
  check_flat("the tensor", values, values.numel());
  return choose_kernels("sum_of_squares", kernels, {&values})
      .sum_of_squares(values);
}

}  // namespace brigade::ops
