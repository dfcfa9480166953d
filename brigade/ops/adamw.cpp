#include "brigade/ops/adamw.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "brigade/kernels/aten/plain.h"
#include "brigade/kernels/cpu/adamw_kernel.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

// Elements a task, and a partial sum: fixed, so that a sum's order does not
// depend on the number of threads.
constexpr int64_t kChunk = 1 << 16;

void check_flat(
    const char* name,
    const Tensor& x,
    int64_t numel,
    torch::ScalarType dtype = torch::kFloat) {
  require(
      x.defined() && x.is_contiguous() && x.numel() == numel &&
          x.scalar_type() == dtype,
      "adamw",
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
      "adamw",
      "a float32 weight is its own master, but master_low is {}",
      describe(master_low));
  require(step.step >= 1, "adamw", "step counts from 1, but is {}", step.step);
  if (!main_grad.device().is_cpu()) {
    plain::adamw_step(
        step, main_grad, exp_avg, exp_avg_sq, weight, master_low, after_read);
    return;
  }
  const auto t = static_cast<double>(step.step);
  const auto narrow = [](double value) { return static_cast<float>(value); };
  with_element_type(weight, [&](auto element) {
    using T = decltype(element);
    const AdamWKernel<T> kernel{
        .main_grad = data<float>(main_grad),
        .exp_avg = data<float>(exp_avg),
        .exp_avg_sq = data<float>(exp_avg_sq),
        .weight = data<T>(weight),
        .master_low = is_split ? data<uint16_t>(master_low) : nullptr,
        .zero_main_grad = after_read == AfterRead::kZero,
        .grad_scale = narrow(step.grad_scale),
        .decay = narrow(1 - step.lr * step.weight_decay),
        .beta1 = narrow(step.beta1),
        .one_minus_beta1 = narrow(1 - step.beta1),
        .beta2 = narrow(step.beta2),
        .one_minus_beta2 = narrow(1 - step.beta2),
        .inverse_root_correction2 =
            narrow(1 / std::sqrt(1 - std::pow(step.beta2, t))),
        .eps = narrow(step.eps),
        .step_size = narrow(step.lr / (1 - std::pow(step.beta1, t)))};
    at::parallel_for(0, numel, kChunk, [&](int64_t begin, int64_t end) {
      adamw_kernel(kernel, begin, end);
    });
  });
}

double sum_of_squares(const Tensor& values) {
  check_flat("the tensor", values, values.numel());
  if (!values.device().is_cpu())
    return plain::sum_of_squares(values);
  const int64_t numel = values.numel();
  const int64_t chunks = (numel + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<size_t>(chunks));
  const float* first = data<float>(values);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk)
      partial[static_cast<size_t>(chunk)] = sum_of_squares_kernel(
          first + chunk * kChunk, std::min(kChunk, numel - chunk * kChunk));
  });
  double sum = 0;
  for (const double value : partial)
    sum += value;
  return sum;
}

}  // namespace brigade::ops
