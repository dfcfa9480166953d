#include "brigade/model/mlp.h"

#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/ops/geglu.h"
#include "brigade/ops/swiglu.h"

namespace brigade {
namespace {

// activation(gate) * up.
torch::Tensor gated(
    Activation activation,
    const torch::Tensor& gate,
    const torch::Tensor& up,
    ops::Kernels kernels) {
  switch (activation) {
    case Activation::kSilu:
      return ops::swiglu(gate, up, kernels);
    case Activation::kGeluTanh:
      return ops::geglu(gate, up);
  }
  BRIGADE_ASSERT(false, "activation {}", static_cast<int>(activation));
}

}  // namespace

Mlp::Mlp(
    ModelContextPtr context,
    const MlpDescription& description,
    const ParameterSource& source)
    : context_(std::move(context)),
      activation_(description.activation),
      gate_up_(source.make_group(*this, "gate_up_proj")),
      down_proj_(register_module("down_proj", source.make("down_proj"))) {
  BRIGADE_ASSERT(
      gate_up_.size() == 2, "gate and up are {} linears", gate_up_.size());
}

torch::Tensor Mlp::forward(const torch::Tensor& x) {
  const auto gate_up = gate_up_.column_parallel(*context_, x);
  // Made again in backward: a pass over memory, and a sixth less to keep.
  const auto activate = [activation = activation_, kernels = context_->kernels](
                            const std::vector<torch::Tensor>& of) {
    return gated(activation, of[0], of[1], kernels);
  };
  return down_proj_->row_parallel(
      *context_, activate(gate_up), {.from = gate_up, .make = activate});
}

}  // namespace brigade
