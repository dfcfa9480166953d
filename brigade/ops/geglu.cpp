#include "brigade/ops/geglu.h"

#include <algorithm>

#include "brigade/ops/describe.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {
namespace {

constexpr const char* kForm = "tanh";

Tensor wide(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
}

// How many elements are computed at a time: what is made in float32 stays small
// beside what is kept.
constexpr int64_t kElementsAtOnce = 1 << 20;

// Calls fn(begin, rows) for all rows of `x`, [..., F].
template <typename Fn>
void for_some_rows(const Tensor& x, const Fn& fn) {
  const int64_t width = std::max<int64_t>(1, x.size(-1));
  const int64_t rows = x.numel() / width;
  const int64_t most = std::max<int64_t>(1, kElementsAtOnce / width);
  for (int64_t begin = 0; begin < rows; begin += most)
    fn(begin, std::min(most, rows - begin));
}

// [..., F] as [N, F], in the same memory where it can be seen so.
Tensor by_row(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

// Keeps gate and up alone: autograd would keep float32 copies of both.
struct GegluNode : OnceDifferentiable<GegluNode> {
  static constexpr const char* kName = "geglu";

  static Tensor
  forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    context->save_for_backward({gate, up});
    Tensor out = torch::empty(gate.sizes(), gate.options());
    Tensor to = by_row(out);
    const Tensor gates = by_row(gate), ups = by_row(up);
    for_some_rows(gate, [&](int64_t begin, int64_t rows) {
      const auto part = [&](const Tensor& x) {
        return wide(x.narrow(0, begin, rows));
      };
      to.narrow(0, begin, rows)
          .copy_(at::gelu(part(gates), kForm).mul_(part(ups)));
    });
    return out;
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    if (!gradients[0].defined())
      return {Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    const auto result =
        empty_side_by_side({saved[0], saved[1]}, saved[0].scalar_type());
    const Tensor gates = by_row(saved[0]), ups = by_row(saved[1]);
    const Tensor douts = by_row(gradients[0]);
    const auto rows_of = [](const Tensor& x) {
      return x.view({-1, x.size(-1)});  // what is written is no copy
    };
    const Tensor dgates = rows_of(result[0]), dups = rows_of(result[1]);
    for_some_rows(saved[0], [&](int64_t begin, int64_t rows) {
      const auto part = [&](const Tensor& x) {
        return wide(x.narrow(0, begin, rows));
      };
      const Tensor gate = part(gates);
      const Tensor dout = part(douts);
      dgates.narrow(0, begin, rows)
          .copy_(at::gelu_backward(dout * part(ups), gate, kForm));
      dups.narrow(0, begin, rows).copy_(at::gelu(gate, kForm).mul_(dout));
    });
    return {result[0], result[1]};
  }
};

}  // namespace

Tensor geglu(const Tensor& gate, const Tensor& up) {
  require(
      gate.dim() >= 1 && gate.sizes() == up.sizes() &&
          gate.scalar_type() == up.scalar_type(),
      "geglu",
      "gate {} and up {} differ",
      describe(gate),
      describe(up));
  return GegluNode::apply(gate, up);
}

}  // namespace brigade::ops
