#include "brigade/model/llama.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/tensor_parallel/mappings.h"
#include "brigade/tensor_parallel/vocab_parallel.h"

namespace brigade {
namespace {

// Gives names without giving behaviour: "model", "model.layers".
class Folder : public torch::nn::Module {};

std::optional<ops::RotaryScaling> scaling_of(const LlamaConfig& config) {
  if (!config.rope_scaling)
    return std::nullopt;
  const Llama3RopeScaling& scaling = *config.rope_scaling;
  return ops::RotaryScaling{
      scaling.factor,
      scaling.low_freq_factor,
      scaling.high_freq_factor,
      static_cast<double>(scaling.original_max_position_embeddings)};
}

}  // namespace

ModelPart whole_model(const LlamaConfig& config) {
  return {.layers = {0, static_cast<int>(config.num_hidden_layers)}};
}

Llama::Llama(ModelContextPtr context, const ModelPart& part)
    : context_(std::move(context)), part_(part) {
  const LlamaConfig& config = context_->config;
  const bool is_tied = config.tie_word_embeddings;
  const auto table = [&] {
    return std::make_shared<LinearWeights>(
        vocab_rows_per_rank(
            config.vocab_size, context_->tensor_parallel.size()),
        config.hidden_size,
        LinearWeights::Bias::kNone,
        context_->dtype);
  };
  const auto model = register_module("model", std::make_shared<Folder>());
  // A tied model's last stage holds a copy of the embedding under its name.
  if (part.is_first || (part.is_last && is_tied))
    embed_tokens_ = model->register_module("embed_tokens", table());
  const auto layers =
      model->register_module("layers", std::make_shared<Folder>());
  for (int layer = part.layers.begin; layer < part.layers.end; ++layer) {
    layers_.push_back(layers->register_module(
        std::to_string(layer), std::make_shared<Block>(context_)));
  }
  if (part.is_last) {
    norm_ = model->register_module(
        "norm",
        std::make_shared<NormWeight>(config.hidden_size, context_->dtype));
    if (!is_tied)
      lm_head_ = register_module("lm_head", table());
  }
}

const torch::Tensor& Llama::head_weight() const {
  return lm_head_ ? lm_head_->weight : embed_tokens_->weight;
}

ops::RotaryTable Llama::rotary_table(const torch::Tensor& positions) {
  if (!table_positions_.defined() ||
      !torch::equal(table_positions_, positions)) {
    const LlamaConfig& config = context_->config;
    table_ = ops::make_rotary_table(
        positions, config.head_dim, config.rope_theta, scaling_of(config));
    table_positions_ = positions;
  }
  return table_;
}

torch::Tensor Llama::forward(
    const MicroBatch& batch,
    const torch::Tensor& input,
    const torch::Tensor& positions) {
  BRIGADE_ASSERT(
      part_.is_first != input.defined(), "a stage's input does not fit it");
  const LlamaConfig& config = context_->config;
  const TensorParallel& parallel = context_->tensor_parallel;
  const AttentionInputs inputs{
      batch.ids.size(0), rotary_table(positions), batch.document_starts};

  ResidualStream stream{input, {}};
  if (part_.is_first) {
    stream.delta = vocab_parallel_embedding(
        parallel,
        batch.ids.flatten(),
        embed_tokens_->weight,
        config.vocab_size,
        context_->op_options());
  }
  for (const auto& layer : layers_)
    stream = layer->forward(stream, inputs);
  if (!part_.is_last)
    return join(stream);

  VocabParallelCrossEntropyOptions options;
  options.vocab_size = config.vocab_size;
  options.weight_grad = context_->weight_grad;
  options.kernels = context_->kernels;
  options.known_gradient = 1.0;
  return vocab_parallel_cross_entropy(
      parallel,
      norm(stream, norm_->weight, *context_).delta,
      head_weight(),
      batch.targets.flatten(),
      options);
}

torch::Tensor Llama::logits(const torch::Tensor& ids) {
  const torch::NoGradGuard no_grad;
  const TensorParallel parallel{context_->tensor_parallel.group};
  const int64_t vocab_size = context_->config.vocab_size;
  const AttentionInputs inputs{
      ids.size(0), rotary_table(torch::arange(ids.size(1))), {}};
  ResidualStream stream{
      vocab_parallel_embedding(
          parallel,
          ids.flatten(),
          embed_tokens_->weight,
          vocab_size,
          context_->op_options()),
      {}};
  for (const auto& layer : layers_)
    stream = layer->forward(stream, inputs);
  return vocab_parallel_logits(
             parallel,
             norm(stream, norm_->weight, *context_).delta,
             head_weight(),
             vocab_size,
             context_->kernels)
      .unflatten(0, {ids.size(0), ids.size(1)});
}

torch::Tensor Llama::generate(
    const torch::Tensor& ids,
    const torch::Tensor& input,
    GenerationState& state) {
  const torch::NoGradGuard no_grad;
  BRIGADE_ASSERT(
      context_->tensor_parallel.tokens == TokenLayout::kReplicated,
      "single tokens cannot be cut for sequence parallel");
  const TensorParallel& parallel = context_->tensor_parallel;
  const int64_t vocab_size = context_->config.vocab_size;
  const int64_t rows = ids.size(0);
  const int64_t tokens = ids.size(1);
  state.caches.resize(layers_.size());
  const AttentionInputs inputs{
      rows,
      rotary_table(torch::arange(state.length, state.length + tokens)),
      {}};
  state.length += tokens;
  ResidualStream stream{input, {}};
  if (part_.is_first) {
    stream.delta = vocab_parallel_embedding(
        parallel,
        ids.flatten(),
        embed_tokens_->weight,
        vocab_size,
        context_->op_options());
  }
  for (size_t i = 0; i < layers_.size(); ++i)
    stream = layers_[i]->forward_cached(stream, inputs, state.caches[i]);
  if (!part_.is_last)
    return join(stream);
  const auto hidden = norm(stream, norm_->weight, *context_).delta;
  const auto last =
      hidden.unflatten(0, {rows, tokens}).select(1, tokens - 1).contiguous();
  return vocab_parallel_logits(
             parallel, last, head_weight(), vocab_size, context_->kernels)
      .to(torch::kFloat);
}

}  // namespace brigade
