#include "brigade/model/llama.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/base/check.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/embedding.h"
#include "brigade/ops/linear.h"

namespace brigade {
namespace {

// Gives names without giving behaviour: "model", "model.layers".
class Folder : public torch::nn::Module {};

}  // namespace

ModelPart whole_model(const LlamaConfig& config) {
  return {.layers = {0, static_cast<int>(config.num_hidden_layers)}};
}

Llama::Llama(const ModelContext& context, const ModelPart& part)
    : context_(context), part_(part) {
  const LlamaConfig& config = context.config;
  const bool is_tied = config.tie_word_embeddings;
  const auto table = [&] {
    return std::make_shared<LinearWeights>(
        config.vocab_size,
        config.hidden_size,
        LinearWeights::Bias::kNone,
        context.dtype);
  };
  const auto model = register_module("model", std::make_shared<Folder>());
  // A tied model's last stage holds a copy of the embedding under its name.
  if (part.is_first || (part.is_last && is_tied))
    embed_tokens_ = model->register_module("embed_tokens", table());
  const auto layers =
      model->register_module("layers", std::make_shared<Folder>());
  for (int layer = part.layers.begin; layer < part.layers.end; ++layer) {
    layers_.push_back(layers->register_module(
        std::to_string(layer), std::make_shared<Block>(context)));
  }
  if (part.is_last) {
    norm_ = model->register_module(
        "norm",
        std::make_shared<NormWeight>(config.hidden_size, context.dtype));
    if (!is_tied)
      lm_head_ = register_module("lm_head", table());
  }
}

const torch::Tensor& Llama::head_weight() const {
  return lm_head_ ? lm_head_->weight : embed_tokens_->weight;
}

torch::Tensor Llama::embed(const torch::Tensor& ids) {
  return ops::embedding(ids, embed_tokens_->weight, context_.weight_grad);
}

const ops::RotaryTable& Llama::rotary_table(const torch::Tensor& positions) {
  if (table_positions_.defined() && torch::equal(table_positions_, positions))
    return table_;
  const LlamaConfig& config = context_.config;
  std::optional<ops::RotaryScaling> scaling;
  if (config.rope_scaling) {
    scaling = ops::RotaryScaling{
        config.rope_scaling->factor,
        config.rope_scaling->low_freq_factor,
        config.rope_scaling->high_freq_factor,
        static_cast<double>(
            config.rope_scaling->original_max_position_embeddings)};
  }
  table_ = ops::make_rotary_table(
      positions, config.head_dim, config.rope_theta, scaling);
  table_positions_ = positions;
  return table_;
}

torch::Tensor Llama::forward(
    const MicroBatch& batch,
    const torch::Tensor& input,
    const torch::Tensor& positions) {
  BRIGADE_ASSERT(part_.is_first != input.defined(), "a stage's input");
  ops::AttentionOptions mask;
  mask.sliding_window = context_.config.sliding_window;
  mask.document_starts = batch.document_starts;
  mask.query_rotary = rotary_table(positions);

  ResidualStream stream{part_.is_first ? embed(batch.ids) : input, {}};
  for (const auto& layer : layers_)
    stream = layer->forward(stream, mask);
  if (!part_.is_last)
    return join(stream);

  const auto hidden = norm(stream, norm_->weight, context_).delta;
  ops::CrossEntropyOptions options;
  options.weight_grad = context_.weight_grad;
  options.known_gradient = 1.0;
  return ops::linear_cross_entropy(
      hidden.flatten(0, 1), head_weight(), batch.targets.flatten(), options);
}

torch::Tensor Llama::logits(const torch::Tensor& ids) {
  const torch::NoGradGuard no_grad;
  ops::AttentionOptions mask;
  mask.sliding_window = context_.config.sliding_window;
  mask.query_rotary = rotary_table(torch::arange(ids.size(1), torch::kLong));
  ResidualStream stream{embed(ids), {}};
  for (const auto& layer : layers_)
    stream = layer->forward(stream, mask);
  return ops::linear(
      norm(stream, norm_->weight, context_).delta, head_weight());
}

torch::Tensor Llama::next_token_logits(
    const torch::Tensor& ids,
    GenerationState& state) {
  const torch::NoGradGuard no_grad;
  state.caches.resize(layers_.size());
  const auto positions =
      torch::arange(state.length, state.length + ids.size(1), torch::kLong);
  const ops::RotaryTable rotary = rotary_table(positions);
  state.length += ids.size(1);
  ResidualStream stream{embed(ids), {}};
  for (size_t i = 0; i < layers_.size(); ++i)
    stream = layers_[i]->forward_cached(stream, rotary, state.caches[i]);
  const auto hidden = norm(stream, norm_->weight, context_).delta;
  return ops::linear(hidden.select(1, hidden.size(1) - 1), head_weight())
      .to(torch::kFloat);
}

}  // namespace brigade
