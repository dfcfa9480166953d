#include "brigade/model/mlp.h"

#include "brigade/ops/linear.h"
#include "brigade/ops/swiglu.h"

namespace brigade {

Mlp::Mlp(const ModelContext& context) : context_(context) {
  const LlamaConfig& config = context.config;
  const auto bias =
      config.mlp_bias ? LinearWeights::Bias::kYes : LinearWeights::Bias::kNone;
  const auto linear = [&](const char* name, int64_t out, int64_t in) {
    return register_module(
        name, std::make_shared<LinearWeights>(out, in, bias, context.dtype));
  };
  gate_proj_ =
      linear("gate_proj", config.intermediate_size, config.hidden_size);
  up_proj_ = linear("up_proj", config.intermediate_size, config.hidden_size);
  down_proj_ =
      linear("down_proj", config.hidden_size, config.intermediate_size);
}

torch::Tensor Mlp::forward(const torch::Tensor& x) {
  const auto gate_up = ops::linear_group(
      x,
      {gate_proj_->weight, up_proj_->weight},
      {gate_proj_->bias, up_proj_->bias},
      context_.weight_grad);
  return ops::linear(
      ops::swiglu(gate_up[0], gate_up[1]),
      down_proj_->weight,
      down_proj_->bias,
      context_.weight_grad);
}

}  // namespace brigade
