#include "brigade/ops/swiglu.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "brigade/kernels/aten/plain.h"
#include "brigade/kernels/cpu/elementwise_kernel.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/rows.h"
#include "brigade/ops/side_by_side.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows a task: about 16 K elements.
int64_t grain(int64_t columns) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns));
}

struct Node : torch::autograd::Function<Node> {
  static Tensor
  forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    const Tensor gate_rows = as_rows(gate);
    const Tensor up_rows = as_rows(up);
    Tensor out = at::empty(gate.sizes(), gate.options());
    with_element_type(gate, [&](auto element) {
      using T = decltype(element);
      const SwigluForward<T> kernel{
          .gate = data<T>(gate_rows),
          .up = data<T>(up_rows),
          .out = data<T>(out),
          .gate_stride = gate_rows.stride(0),
          .up_stride = up_rows.stride(0),
          .columns = gate_rows.size(1)};
      at::parallel_for(
          0,
          gate_rows.size(0),
          grain(kernel.columns),
          [&](int64_t begin, int64_t end) {
            swiglu_forward(kernel, begin, end);
          });
    });
    context->save_for_backward({gate, up});
    return out;
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list gradients) {
    if (!gradients[0].defined())
      return {Tensor(), Tensor()};
    const auto saved = context->get_saved_variables();
    const Tensor gate_rows = as_rows(saved[0]);
    const Tensor up_rows = as_rows(saved[1]);
    const Tensor dout = as_rows(gradients[0]);
    const auto result =
        empty_side_by_side({saved[0], saved[1]}, dout.scalar_type());
    const Tensor dgate = as_rows(result[0]);
    const Tensor dup = as_rows(result[1]);
    with_element_type(dout, [&](auto element) {
      using T = decltype(element);
      const SwigluBackward<T> kernel{
          .dout = data<T>(dout),
          .gate = data<T>(gate_rows),
          .up = data<T>(up_rows),
          .dgate = data<T>(dgate),
          .dup = data<T>(dup),
          .dout_stride = dout.stride(0),
          .gate_stride = gate_rows.stride(0),
          .up_stride = up_rows.stride(0),
          .dgate_stride = dgate.stride(0),
          .dup_stride = dup.stride(0),
          .columns = dout.size(1)};
      at::parallel_for(
          0,
          dout.size(0),
          grain(kernel.columns),
          [&](int64_t begin, int64_t end) {
            swiglu_backward(kernel, begin, end);
          });
    });
    return {result[0], result[1]};
  }
};

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  require(
      gate.dim() >= 1 && gate.sizes() == up.sizes() &&
          gate.scalar_type() == up.scalar_type(),
      "swiglu",
      "gate {} and up {} differ",
      describe(gate),
      describe(up));
  if (!has_kernel(gate) || gate.numel() == 0)
    return plain::swiglu(gate, up);
  return Node::apply(gate, up);
}

Tensor swiglu(const Tensor& gate_up) {
  require(
      gate_up.dim() >= 1 && gate_up.size(-1) % 2 == 0,
      "swiglu",
      "gate_up {} has an odd last dim",
      describe(gate_up));
  const int64_t half = gate_up.size(-1) / 2;
  return swiglu(gate_up.narrow(-1, 0, half), gate_up.narrow(-1, half, half));
}

}  // namespace brigade::ops
