#include "brigade/ops/rotary.h"

#include <cmath>
#include <vector>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade::ops {
namespace {

constexpr const char* kRotaryOp = "rotary";

void check_rotary(const Tensor& x, const RotaryTable& table) {
  require(
      x.dim() == 4 && x.size(1) == table.cos.size(0) &&
          x.size(3) == 2 * table.cos.size(1) &&
          x.device() == table.cos.device(),
      kRotaryOp,
      "q or k is {} on {}, but the table's cos is {} on {}: expected "
      "[B, {}, H, {}] there",
      describe(x),
      x.device().str(),
      describe(table.cos),
      table.cos.device().str(),
      table.cos.size(0),
      2 * table.cos.size(1));
}

Tensor rotated(
    const Tensor& x,
    const RotaryTable& table,
    RotaryDirection direction,
    const KernelSet& kernels) {
  const Tensor y = at::empty(x.sizes(), x.options());
  kernels.rotate({y, x, table, direction});
  return y;
}

struct RotaryNode : OnceDifferentiable<RotaryNode> {
  static constexpr const char* kName = "rotary";

  static variable_list forward(
      AutogradContext* context,
      const Tensor& q,
      const Tensor& k,
      const RotaryTable& table,
      const KernelSet* kernels) {
    context->save_for_backward({table.cos, table.sin});
    carry(context, kernels);
    return {
        rotated(q, table, RotaryDirection::kForward, *kernels),
        rotated(k, table, RotaryDirection::kForward, *kernels)};
  }

  // A rotation's transpose is its inverse.
  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const KernelSet& kernels = *carried<const KernelSet*>(context);
    variable_list result(4);
    for (size_t i = 0; i < 2; ++i) {
      if (gradients[i].defined())
        result[i] = rotated(
            gradients[i],
            {saved[0], saved[1]},
            RotaryDirection::kBackward,
            kernels);
    }
    return result;
  }
};

}  // namespace

RotaryTable make_rotary_table(
    const Tensor& positions,
    const std::vector<double>& frequencies,
    double magnitude) {
  require(
      positions.dim() == 1 && positions.scalar_type() == torch::kLong,
      kRotaryOp,
      "positions must be int64 [T], but are {}",
      describe(positions));
  const Tensor angles =
      positions.to(torch::kDouble).unsqueeze(1) *
      torch::tensor(frequencies, torch::kDouble).to(positions.device());
  RotaryTable table{torch::cos(angles), torch::sin(angles)};
  if (magnitude != 1)
    table = {table.cos * magnitude, table.sin * magnitude};
  return {table.cos.to(torch::kFloat), table.sin.to(torch::kFloat)};
}

RotaryTable
make_rotary_table(const Tensor& positions, int64_t head_dim, double theta) {
  require(
      head_dim > 0 && head_dim % 2 == 0,
      kRotaryOp,
      "head_dim must be even, but is {}",
      head_dim);
  std::vector<double> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    frequencies.push_back(std::pow(
        theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim)));
  }
  return make_rotary_table(positions, frequencies);
}

std::pair<Tensor, Tensor> rotary(
    const Tensor& q,
    const Tensor& k,
    const RotaryTable& table,
    Kernels kernels) {
  check_rotary(q, table);
  check_rotary(k, table);
  const auto outputs = RotaryNode::apply(
      q, k, table, &choose_kernels(kRotaryOp, kernels, {&q, &k}));
  return {outputs[0], outputs[1]};
}

void rotate_into(
    Tensor y,
    const Tensor& x,
    const std::optional<RotaryTable>& table,
    Kernels kernels) {
  const torch::NoGradGuard no_grad;
  if (table)
    check_rotary(x, *table);
  require(
      y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type() &&
          (y.size(3) == 1 || y.stride(3) == 1),
      kRotaryOp,
      "{} was to be rotated into {}, which must be like it with a dense last "
      "dim",
      describe(x),
      describe(y));
  choose_kernels(kRotaryOp, kernels, {&x}).rotate({y, x, table});
}

}  // namespace brigade::ops
