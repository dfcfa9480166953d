#include "brigade/context_parallel/partial_gradient.h"

#include <ATen/Parallel.h>

#include "brigade/kernels/aten/plain.h"
#include "brigade/kernels/cpu/attention_call.h"
#include "brigade/ops/rows.h"

namespace brigade {
namespace {

using torch::Tensor;

constexpr int64_t kGrain = 64;  // tokens a task

bool is_dense(const Tensor& x) {
  return x.size(-1) <= 1 || x.stride(-1) == 1;
}

}  // namespace

void add_partial_gradient(
    Tensor sum,
    const Tensor& other,
    const std::optional<ops::RotaryTable>& rotary) {
  const torch::NoGradGuard no_grad;
  if (!ops::has_kernel(sum) || !is_dense(sum) || !is_dense(other) ||
      other.scalar_type() != sum.scalar_type()) {
    Tensor values = other;
    if (rotary)
      values =
          ops::plain::rotary(values, values, {rotary->cos, -rotary->sin}).first;
    sum.add_(values);
    return;
  }
  const Tensor cos = rotary ? rotary->cos.contiguous() : Tensor();
  const Tensor sin = rotary ? rotary->sin.contiguous() : Tensor();
  ops::with_element_type(sum, [&](auto element) {
    using T = decltype(element);
    ops::AddPartialGradient<T> kernel{
        .sum = ops::heads_of<T>(sum),
        .other = ops::heads_of<const T>(other),
        .rotation = {},
        .tokens = sum.size(1),
        .heads = sum.size(2),
        .head_dim = sum.size(3)};
    if (rotary)
      kernel.rotation = {ops::data<float>(cos), ops::data<float>(sin)};
    at::parallel_for(
        0, sum.size(0) * sum.size(1), kGrain, [&](int64_t begin, int64_t end) {
          ops::add_partial_gradient(kernel, begin, end);
        });
  });
}

}  // namespace brigade
