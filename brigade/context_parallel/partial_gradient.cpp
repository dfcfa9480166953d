#include "brigade/context_parallel/partial_gradient.h"

#include <ATen/Parallel.h>

#include "brigade/ops/attention_kernel.h"
#include "brigade/ops/plain.h"
#include "brigade/ops/rows.h"

namespace brigade {
namespace {

using ops::Heads;
using torch::Tensor;

constexpr int64_t kGrain = 64;  // tokens a task

bool is_dense(const Tensor& x) {
  return x.size(-1) <= 1 || x.stride(-1) == 1;
}

bool is_float(const Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == torch::kFloat && is_dense(x);
}

template <typename T>
Heads<T> heads_of(const Tensor& x) {
  return {
      ops::data<std::remove_const_t<T>>(x),
      x.stride(0),
      x.stride(1),
      x.stride(2)};
}

}  // namespace

void add_partial_gradient(
    Tensor sum,
    const Tensor& own,
    const PartialGradient& other) {
  const torch::NoGradGuard no_grad;
  if (!other.values.defined()) {
    sum.copy_(own);
    return;
  }
  const int64_t tokens = other.values.size(1);
  if (!ops::has_kernel(sum) || !is_dense(sum) || !is_float(own) ||
      !is_float(other.values)) {
    Tensor values = other.values;
    if (other.rotary)
      values = ops::plain::rotary(
                   values, values, {other.rotary->cos, -other.rotary->sin})
                   .first;
    Tensor total = own.clone();
    total.narrow(1, other.first_token, tokens).add_(values);
    sum.copy_(total);
    return;
  }
  const Tensor cos = other.rotary ? other.rotary->cos.contiguous() : Tensor();
  const Tensor sin = other.rotary ? other.rotary->sin.contiguous() : Tensor();
  ops::with_element_type(sum, [&](auto element) {
    using T = decltype(element);
    ops::AddPartialGradient<T> kernel{
        .sum = heads_of<T>(sum),
        .own = heads_of<const float>(own),
        .other = heads_of<const float>(other.values),
        .begin = other.first_token,
        .end = other.first_token + tokens,
        .rotation = {},
        .tokens = sum.size(1),
        .heads = sum.size(2),
        .head_dim = sum.size(3)};
    if (other.rotary)
      kernel.rotation = {ops::data<float>(cos), ops::data<float>(sin)};
    at::parallel_for(
        0, sum.size(0) * sum.size(1), kGrain, [&](int64_t begin, int64_t end) {
          ops::add_partial_gradient(kernel, begin, end);
        });
  });
}

}  // namespace brigade
