#include "brigade/model/block.h"

#include <utility>

#include "brigade/model/recompute.h"
#include "brigade/ops/rms_norm.h"

namespace brigade {

torch::Tensor join(const ResidualStream& stream) {
  return stream.residual.defined() ? stream.delta + stream.residual
                                   : stream.delta;
}

ResidualStream norm(
    const ResidualStream& stream,
    const torch::Tensor& weight,
    const ModelContext& context) {
  const double eps = context.config.rms_norm_eps;
  if (!stream.residual.defined()) {
    return {
        ops::rms_norm(stream.delta, weight, eps, context.op_options()),
        stream.delta};
  }
  auto [normed, sum] = ops::add_rms_norm(
      stream.delta, stream.residual, weight, eps, context.op_options());
  return {std::move(normed), std::move(sum)};
}

Block::Block(ModelContextPtr context) : context_(std::move(context)) {
  // Registered in the order of transformers.
  self_attn_ =
      register_module("self_attn", std::make_shared<SelfAttention>(context_));
  mlp_ = register_module("mlp", std::make_shared<Mlp>(context_));
  const auto norm_weight = [&](const char* name) {
    return register_module(
        name,
        std::make_shared<NormWeight>(
            context_->config.hidden_size, context_->dtype));
  };
  input_layernorm_ = norm_weight("input_layernorm");
  post_attention_layernorm_ = norm_weight("post_attention_layernorm");
}

template <typename Attend>
ResidualStream Block::run(const ResidualStream& stream, const Attend& attend) {
  const ResidualStream before =
      norm(stream, input_layernorm_->weight, *context_);
  const ResidualStream after = norm(
      {attend(before.delta), before.residual},
      post_attention_layernorm_->weight,
      *context_);
  return {mlp_->forward(after.delta), after.residual};
}

ResidualStream Block::forward(
    const ResidualStream& stream,
    const AttentionInputs& inputs) {
  const auto attend = [this, inputs](const torch::Tensor& x) {
    return self_attn_->forward(x, inputs);
  };
  if (context_->recompute != Recompute::kFull)
    return run(stream, attend);
  // The whole block again in backward: only its input is kept.
  const auto whole = [this, attend](const std::vector<torch::Tensor>& streams) {
    return join(run({streams[0], streams[1]}, attend));
  };
  return {recompute(whole, {stream.delta, stream.residual}), {}};
}

ResidualStream Block::forward_cached(
    const ResidualStream& stream,
    const AttentionInputs& inputs,
    SelfAttention::KeyValueCache& cache) {
  return run(stream, [&](const torch::Tensor& x) {
    return self_attn_->forward_cached(x, inputs, cache);
  });
}

}  // namespace brigade
