#include "brigade/model/mlp.h"

#include <utility>
#include <vector>

#include "brigade/ops/swiglu.h"

namespace brigade {

Mlp::Mlp(ModelContextPtr context) : context_(std::move(context)) {
  const LlamaConfig& config = context_->config;
  const auto bias =
      config.mlp_bias ? LinearWeights::Bias::kYes : LinearWeights::Bias::kNone;
  const int64_t hidden = config.hidden_size;
  const int64_t width =
      config.intermediate_size / context_->tensor_parallel.size();
  const auto linear = [&](const char* name, int64_t out, int64_t in) {
    return register_module(
        name, std::make_shared<LinearWeights>(out, in, bias, context_->dtype));
  };
  gate_proj_ = linear("gate_proj", width, hidden);
  up_proj_ = linear("up_proj", width, hidden);
  down_proj_ = linear("down_proj", hidden, width);
}

torch::Tensor Mlp::forward(const torch::Tensor& x) {
  const auto gate_up = column_parallel_linear(
      context_->tensor_parallel,
      x,
      {gate_proj_->weight, up_proj_->weight},
      {gate_proj_->bias, up_proj_->bias},
      context_->linear_options());
  // Made again in backward: a pass over memory, and a sixth less to keep.
  const auto activation =
      [kernels = context_->kernels](const std::vector<torch::Tensor>& of) {
        return ops::swiglu(of[0], of[1], kernels);
      };
  return row_parallel_linear(
      context_->tensor_parallel,
      activation(gate_up),
      down_proj_->weight,
      down_proj_->bias,
      context_->linear_options(),
      {.from = gate_up, .make = activation});
}

}  // namespace brigade
