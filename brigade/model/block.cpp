#include "brigade/model/block.h"

#include "brigade/base/error.h"
#include "brigade/model/recompute.h"

namespace brigade {

Block::Block(
    const ModelContextPtr& context,
    const LayerDescription& layer,
    const ParameterSource& source)
    : context_(context) {
  if (layer.experts)
    throw ConfigError(
        "[model] mixture of experts: models with experts are described, but "
        "not yet computed");
  // Registered in the order of transformers.
  self_attn_ = register_module(
      "self_attn",
      std::make_shared<SelfAttention>(
          context, layer.attention, source.inside("self_attn")));
  mlp_ = register_module(
      "mlp", std::make_shared<Mlp>(context, layer.mlp, source.inside("mlp")));
  const auto norm = [&](const NormDescription& description) {
    return Norm(*this, description, source, context->op_options());
  };
  before_attention_ = norm(layer.before_attention);
  if (layer.after_attention)
    after_attention_ = norm(*layer.after_attention);
  before_mlp_ = norm(layer.before_mlp);
  if (layer.after_mlp)
    after_mlp_ = norm(*layer.after_mlp);
}

template <typename Attend>
ResidualStream Block::run(const ResidualStream& stream, const Attend& attend) {
  const auto after = [](const std::optional<Norm>& norm, torch::Tensor x) {
    return norm ? norm->forward(x) : x;
  };
  const ResidualStream attended = before_attention_->forward(stream);
  const ResidualStream mixed = before_mlp_->forward(ResidualStream{
      after(after_attention_, attend(attended.delta)), attended.residual});
  return {after(after_mlp_, mlp_->forward(mixed.delta)), mixed.residual};
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
