#include "brigade/ops/geglu.h"

#include "brigade/ops/describe.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {
namespace {

constexpr const char* kForm = "tanh";

Tensor wide(const Tensor& x) {
  return x.scalar_type() == torch::kDouble ? x : x.to(torch::kFloat);
}

// Keeps gate and up alone: autograd would keep float32 copies of both.
struct GegluNode : OnceDifferentiable<GegluNode> {
  static constexpr const char* kName = "geglu";

  static Tensor
  forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    context->save_for_backward({gate, up});
    return at::gelu(wide(gate), kForm)
        .mul_(wide(up))
        .to(gate.scalar_type())
        .contiguous();
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    if (!gradients[0].defined())
      return {Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    const Tensor gate = wide(saved[0]);
    const Tensor up = wide(saved[1]);
    const Tensor dout = wide(gradients[0]);
    const auto result =
        empty_side_by_side({saved[0], saved[1]}, saved[0].scalar_type());
    Tensor(result[0]).copy_(at::gelu_backward(dout * up, gate, kForm));
    Tensor(result[1]).copy_(at::gelu(gate, kForm).mul_(dout));
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
