#include "brigade/ops/rotary.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <numbers>

#include "brigade/kernels/aten/plain.h"
#include "brigade/kernels/cpu/elementwise_kernel.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

// The llama3 rule: wavelengths shorter than original / high_freq_factor are
// kept, longer than original / low_freq_factor divided by factor.
double scaled_frequency(double frequency, const RotaryScaling& scaling) {
  const double turns = scaling.original_max_position_embeddings * frequency /
                       (2 * std::numbers::pi);
  if (turns > scaling.high_freq_factor)
    return frequency;
  if (turns < scaling.low_freq_factor)
    return frequency / scaling.factor;
  const double smooth = (turns - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// Tokens a task.
constexpr int64_t kGrain = 16;

void run(
    const Tensor& y,
    const Tensor& input,
    const std::optional<RotaryTable>& table,
    float sign) {
  const Tensor x = input.stride(3) == 1 ? input : input.contiguous();
  const Tensor cos = table ? table->cos.contiguous() : Tensor();
  const Tensor sin = table ? table->sin.contiguous() : Tensor();
  with_element_type(x, [&](auto element) {
    using T = decltype(element);
    const Rotate<T> kernel{
        .x = data<T>(x),
        .y = data<T>(y),
        .x_strides = {x.stride(0), x.stride(1), x.stride(2)},
        .y_strides = {y.stride(0), y.stride(1), y.stride(2)},
        .cos = table ? data<float>(cos) : nullptr,
        .sin = table ? data<float>(sin) : nullptr,
        .sign = sign,
        .tokens = x.size(1),
        .heads = x.size(2),
        .head_dim = x.size(3)};
    at::parallel_for(
        0, x.size(0) * x.size(1), kGrain, [&](int64_t begin, int64_t end) {
          rotate(kernel, begin, end);
        });
  });
}

Tensor rotated(const Tensor& x, const RotaryTable& table, float sign) {
  const Tensor y = at::empty(x.sizes(), x.options());
  run(y, x, table, sign);
  return y;
}

void check(const Tensor& x, const RotaryTable& table) {
  require(
      x.dim() == 4 && x.size(1) == table.cos.size(0) &&
          x.size(3) == 2 * table.cos.size(1),
      "rotary",
      "q or k is {}, but the table's cos is {}: expected [B, {}, H, {}]",
      describe(x),
      describe(table.cos),
      table.cos.size(0),
      2 * table.cos.size(1));
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Node : torch::autograd::Function<Node> {
  static variable_list forward(
      AutogradContext* context,
      const Tensor& q,
      const Tensor& k,
      const Tensor& cos,
      const Tensor& sin) {
    context->save_for_backward({cos, sin});
    return {rotated(q, {cos, sin}, 1.0F), rotated(k, {cos, sin}, 1.0F)};
  }

  // A rotation's transpose is its inverse.
  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    variable_list result(4);
    for (size_t i = 0; i < 2; ++i) {
      if (gradients[i].defined())
        result[i] = rotated(gradients[i], {saved[0], saved[1]}, -1.0F);
    }
    return result;
  }
};

}  // namespace

RotaryTable make_rotary_table(
    const Tensor& positions,
    int64_t head_dim,
    double theta,
    const std::optional<RotaryScaling>& scaling) {
  require(
      positions.dim() == 1 && positions.scalar_type() == torch::kLong,
      "rotary",
      "positions must be int64 [T], but are {}",
      describe(positions));
  require(
      head_dim > 0 && head_dim % 2 == 0,
      "rotary",
      "head_dim must be even, but is {}",
      head_dim);
  Tensor frequencies = torch::empty({head_dim / 2}, torch::kDouble);
  auto* values = frequencies.data_ptr<double>();
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    values[i] = std::pow(
        theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (scaling)
      values[i] = scaled_frequency(values[i], *scaling);
  }
  const Tensor angles = positions.to(torch::kDouble).unsqueeze(1) *
                        frequencies.to(positions.device());
  return {
      torch::cos(angles).to(torch::kFloat),
      torch::sin(angles).to(torch::kFloat)};
}

std::pair<Tensor, Tensor>
rotary(const Tensor& q, const Tensor& k, const RotaryTable& table) {
  check(q, table);
  check(k, table);
  if (!has_kernel(q) || q.scalar_type() != k.scalar_type())
    return plain::rotary(q, k, table);
  const auto outputs = Node::apply(q, k, table.cos, table.sin);
  return {outputs[0], outputs[1]};
}

void rotate_into(
    Tensor y,
    const Tensor& x,
    const std::optional<RotaryTable>& table) {
  const torch::NoGradGuard no_grad;
  if (table)
    check(x, *table);
  require(
      y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type() &&
          y.stride(3) == 1,
      "rotary",
      "{} was to be rotated into {}, which must be like it with a dense last "
      "dim",
      describe(x),
      describe(y));
  if (!has_kernel(x)) {
    y.copy_(table ? plain::rotary(x, x, *table).first : x);
    return;
  }
  run(y, x, table, 1.0F);
}

}  // namespace brigade::ops
