#include "brigade/model/block.h"

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
        ops::rms_norm(stream.delta, weight, eps, context.weight_grad),
        stream.delta};
  }
  auto [normed, sum] = ops::add_rms_norm(
      stream.delta, stream.residual, weight, eps, context.weight_grad);
  return {std::move(normed), std::move(sum)};
}

Block::Block(const ModelContext& context) : context_(context) {
  // Registered in the order of transformers.
  self_attn_ =
      register_module("self_attn", std::make_shared<SelfAttention>(context));
  mlp_ = register_module("mlp", std::make_shared<Mlp>(context));
  const int64_t hidden = context.config.hidden_size;
  input_layernorm_ = register_module(
      "input_layernorm", std::make_shared<NormWeight>(hidden, context.dtype));
  post_attention_layernorm_ = register_module(
      "post_attention_layernorm",
      std::make_shared<NormWeight>(hidden, context.dtype));
}

template <typename Attend>
ResidualStream Block::run(const ResidualStream& stream, const Attend& attend) {
  const ResidualStream before =
      norm(stream, input_layernorm_->weight, context_);
  const ResidualStream after = norm(
      {attend(before.delta), before.residual},
      post_attention_layernorm_->weight,
      context_);
  return {mlp_->forward(after.delta), after.residual};
}

ResidualStream Block::forward(
    const ResidualStream& stream,
    const ops::AttentionOptions& mask) {
  return run(stream, [&](const torch::Tensor& x) {
    return self_attn_->forward(x, mask);
  });
}

ResidualStream Block::forward_cached(
    const ResidualStream& stream,
    const ops::RotaryTable& rotary,
    SelfAttention::KeyValueCache& cache) {
  return run(stream, [&](const torch::Tensor& x) {
    return self_attn_->forward_cached(x, rotary, cache);
  });
}

}  // namespace brigade
