#include "brigade/model/block.h"

#include "brigade/model/recompute.h"

namespace brigade {

Block::Block(
    const ModelContextPtr& context,
    int64_t index,
    const LayerDescription& layer,
    const ExpertRange& experts,
    const ParameterSource& source)
    : context_(context) {
  // Registered in the order of transformers.
  self_attn_ = register_module(
      "self_attn",
      std::make_shared<SelfAttention>(
          context, layer.attention, source.inside("self_attn")));
  if (layer.experts) {
    const std::string& name = layer.experts->block;
    experts_ = register_module(
        name,
        std::make_shared<Experts>(
            context, index, *layer.experts, experts, source.inside(name)));
  } else {
    mlp_ = register_module(
        "mlp", std::make_shared<Mlp>(context, layer.mlp, source.inside("mlp")));
  }
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

template <typename Attend, typename Mix>
ResidualStream
Block::run(const ResidualStream& stream, const Attend& attend, const Mix& mix) {
  const auto after = [](const std::optional<Norm>& norm, torch::Tensor x) {
    return norm ? norm->forward(x) : x;
  };
  const ResidualStream attended = before_attention_->forward(stream);
  const ResidualStream mixed = before_mlp_->forward(ResidualStream{
      after(after_attention_, attend(attended.delta)), attended.residual});
  return {after(after_mlp_, mix(mixed.delta)), mixed.residual};
}

ResidualStream Block::forward(
    const ResidualStream& stream,
    const AttentionInputs& inputs,
    const ExpertInputs& expert_inputs) {
  const auto attend = [this, inputs](const torch::Tensor& x) {
    return self_attn_->forward(x, inputs);
  };
  // Both runs of a block that is computed again visit the same experts.
  const auto kept = experts_ ? std::make_shared<KeptRouting>() : nullptr;
  const auto mix = [this, expert_inputs, kept](const torch::Tensor& x) {
    return experts_ ? experts_->forward(x, expert_inputs, *kept)
                    : mlp_->forward(x);
  };
  if (context_->recompute != Recompute::kFull)
    return run(stream, attend, mix);
  // The whole block again in backward, maybe after other micro-batches: only
  // its input and the dropout are kept.
  const auto whole = [this, attend, mix, dropout = context_->dropout](
                         const std::vector<torch::Tensor>& streams) {
    context_->dropout = dropout;
    return join(run({streams[0], streams[1]}, attend, mix));
  };
  return {recompute(whole, {stream.delta, stream.residual}), {}};
}

ResidualStream Block::forward_cached(
    const ResidualStream& stream,
    const AttentionInputs& inputs,
    SelfAttention::KeyValueCache& cache) {
  const auto attend = [&](const torch::Tensor& x) {
    return self_attn_->forward_cached(x, inputs, cache);
  };
  KeptRouting kept;
  return run(stream, attend, [&](const torch::Tensor& x) {
    return experts_ ? experts_->forward(x, {}, kept) : mlp_->forward(x);
  });
}

}  // namespace brigade
