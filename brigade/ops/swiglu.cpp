#include "brigade/ops/swiglu.h"

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/rows.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {
namespace {

constexpr const char* kSwigluOp = "swiglu";

struct SwigluNode : OnceDifferentiable<SwigluNode> {
  static constexpr const char* kName = "swiglu";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& gate,
      const Tensor& up,
      const KernelSet* kernels) {
    context->save_for_backward({gate, up});
    carry(context, kernels);
    return kernels->swiglu(gate, up);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    if (!gradients[0].defined())
      return variable_list(3);
    const auto saved = context->get_saved_variables();
    const Tensor dout = as_rows(gradients[0]);
    const auto result =
        empty_side_by_side({saved[0], saved[1]}, dout.scalar_type());
    carried<const KernelSet*>(context)->swiglu_backward(
        {.dout = dout,
         .gate = as_rows(saved[0]),
         .up = as_rows(saved[1]),
         .dgate = as_rows(result[0]),
         .dup = as_rows(result[1])});
    return {result[0], result[1], Tensor()};
  }
};

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up, Kernels kernels) {
  require(
      gate.dim() >= 1 && gate.sizes() == up.sizes() &&
          gate.scalar_type() == up.scalar_type(),
      kSwigluOp,
      "gate {} and up {} differ",
      describe(gate),
      describe(up));
  return SwigluNode::apply(
      gate, up, &choose_kernels(kSwigluOp, kernels, {&gate, &up}));
}

Tensor swiglu(const Tensor& gate_up, Kernels kernels) {
  require(
      gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0,
      kSwigluOp,
      "gate_up {} has an odd last dim",
      describe(gate_up));
  const int64_t half = gate_up.size(-1) / 2;
  return swiglu(
      gate_up.narrow(-1, 0, half), gate_up.narrow(-1, half, half), kernels);
}

}  // namespace brigade::ops
