#include "brigade/ops/adamw.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/plain.h"

namespace brigade::ops {
namespace {

void check_flat(const char* name, const Tensor& x, int64_t numel) {
  require(
      x.is_contiguous() && x.numel() == numel &&
          (x.scalar_type() == torch::kFloat ||
           (x.scalar_type() == torch::kBFloat16 &&
            std::string_view(name) == "weight")),
      "adamw",
      "{} is {}, expected a contiguous float32 tensor of {} elements",
      name,
      describe(x),
      numel);
}

}  // namespace

void adamw_step(
    const AdamWStep& step,
    Tensor main_grad,
    Tensor master,
    Tensor exp_avg,
    Tensor exp_avg_sq,
    Tensor weight,
    AfterRead after_read) {
  const int64_t numel = main_grad.numel();
  check_flat("main_grad", main_grad, numel);
  check_flat("master", master, numel);
  check_flat("exp_avg", exp_avg, numel);
  check_flat("exp_avg_sq", exp_avg_sq, numel);
  check_flat("weight", weight, numel);
  require(step.step >= 1, "adamw", "step counts from 1, but is {}", step.step);
  plain::adamw_step(
      step, main_grad, master, exp_avg, exp_avg_sq, weight, after_read);
}

double sum_of_squares(const Tensor& values) {
  check_flat("the tensor", values, values.numel());
  return plain::sum_of_squares(values);
}

}  // namespace brigade::ops
