#include "brigade/model/decoder_model.h"

#include <string>
#include <utility>
#include <vector>

#include "brigade/base/check.h"
#include "brigade/ops/torch_products.h"
#include "brigade/tensor_parallel/vocab_parallel.h"

namespace brigade {
namespace {

// Gives names without giving behaviour: "model", "model.layers".
class Folder : public torch::nn::Module {};

}  // namespace

DecoderModel::DecoderModel(ModelContextPtr context, const ModelPart& part)
    : context_(std::move(context)), part_(part) {
  if (context_->device.is_cpu() && context_->dtype == torch::kBFloat16)
    ops::ensure_torch_multiplies_bf16();
  const ModelDescription& description = context_->description;
  const ParameterSource root(*context_);
  const ParameterSource source = root.inside("model");
  const auto model = register_module("model", std::make_shared<Folder>());
  // A tied model's last stage holds a copy of the embedding under its name.
  if (part.is_first || (part.is_last && description.has_tied_head)) {
    embed_tokens_ =
        model->register_module("embed_tokens", source.make("embed_tokens"));
  }
  const auto layers =
      model->register_module("layers", std::make_shared<Folder>());
  for (int i = part.layers.begin; i < part.layers.end; ++i) {
    const LayerDescription& layer =
        description.layers.at(static_cast<size_t>(i));
    const std::string name = std::to_string(i);
    layers_.push_back(layers->register_module(
        name,
        std::make_shared<Block>(
            context_,
            i,
            layer,
            part.experts,
            source.inside("layers").inside(name))));
    rotary_.add_layer(layer.attention);
    has_experts_ = has_experts_ || layer.experts.has_value();
  }
  if (part.is_last) {
    norm_.emplace(
        *model, description.final_norm, source, context_->op_options());
    if (!description.has_tied_head)
      lm_head_ = register_module("lm_head", root.make("lm_head"));
  }
}

const torch::Tensor& DecoderModel::head_weight() const {
  return lm_head_ ? lm_head_->weight : embed_tokens_->weight;
}

void DecoderModel::begin_forward(
    const torch::Tensor& positions,
    const torch::Tensor& token_keys) {
  rotary_.set_positions(positions);
  context_->dropout = {
      context_->description.adapter.dropout,
      token_keys.defined() ? token_keys.flatten() : token_keys};
}

torch::Tensor DecoderModel::all_logits(
    const TensorParallel& parallel,
    const torch::Tensor& hidden) const {
  const torch::Tensor logits = vocab_parallel_logits(
      parallel,
      hidden,
      head_weight(),
      context_->description.vocab_size,
      context_->kernels);
  const auto& cap = context_->description.final_logit_soft_cap;
  return cap ? torch::tanh(logits / *cap) * *cap : logits;
}

torch::Tensor DecoderModel::embed(
    const TensorParallel& parallel,
    const torch::Tensor& ids,
    ops::OpOptions options) const {
  const torch::Tensor embedded = vocab_parallel_embedding(
      parallel,
      ids.flatten(),
      embed_tokens_->weight,
      context_->description.vocab_size,
      options);
  const auto& scale = context_->description.embedding_scale;
  // A tensor of the model's dtype, so that the factor is rounded as
  // transformers rounds it.
  return scale ? embedded * torch::scalar_tensor(*scale, embedded.options())
               : embedded;
}

torch::Tensor DecoderModel::run_layers(
    const MicroBatch& batch,
    const torch::Tensor& input,
    const torch::Tensor& positions) {
  BRIGADE_ASSERT(
      part_.is_first != input.defined(), "a stage's input does not fit it");
  const TensorParallel& parallel = context_->tensor_parallel;
  AttentionInputs inputs{batch.ids.size(0), {}, batch.document_starts};
  ExpertInputs expert_inputs{.has_loss = {}, .sequences = batch.ids.size(0)};
  // Here rather than in a layer: what is computed again in backward has no
  // graph the first time.
  const bool is_training = torch::GradMode::is_enabled();
  begin_forward(positions, is_training ? batch.token_keys : torch::Tensor());
  if (has_experts_ && batch.targets.defined())
    expert_inputs.has_loss = batch.has_loss().flatten();
  if (is_training)
    expert_inputs.capacity_factor = context_->expert_capacity_factor;

  ResidualStream stream{input, {}};
  if (part_.is_first) {
    context_->announce_forward({Place::kEmbedding});
    stream.delta = embed(parallel, batch.ids, context_->op_options());
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ModelUnit unit{
        Place::kLayer, part_.layers.begin + static_cast<int64_t>(i)};
    context_->announce_forward(unit);
    inputs.rotary = rotary_.of_layer(i);
    stream = layers_[i]->forward(stream, inputs, expert_inputs);
    context_->announce_backward(stream.delta, unit);
    context_->announce_backward(stream.residual, unit);
  }
  context_->announce_forward({Place::kHead});
  return part_.is_last ? norm_->forward(stream).delta : join(stream);
}

torch::Tensor DecoderModel::forward(
    const MicroBatch& batch,
    const torch::Tensor& input,
    const torch::Tensor& positions) {
  const torch::Tensor output = run_layers(batch, input, positions);
  if (!part_.is_last)
    return output;

  ops::CrossEntropyOptions options;
  options.vocab_size = context_->description.vocab_size;
  options.weight_grad = context_->weight_grad;
  options.kernels = context_->kernels;
  options.known_gradient = 1.0;
  options.logit_soft_cap = context_->description.final_logit_soft_cap;
  options.teacher = batch.teacher;
  if (context_->objective)
    options.objective = [&](const torch::Tensor& losses) {
      return context_->objective(batch, losses);
    };
  const torch::Tensor loss = vocab_parallel_cross_entropy(
      context_->tensor_parallel,
      output,
      head_weight(),
      batch.targets.flatten(),
      options);
  context_->announce_backward(loss, {Place::kHead});
  return loss;
}

torch::Tensor DecoderModel::hidden(
    const MicroBatch& batch,
    const torch::Tensor& input,
    const torch::Tensor& positions) {
  const torch::NoGradGuard no_grad;
  return run_layers(batch, input, positions);
}

DecoderModel::TopTokens DecoderModel::top_tokens(
    const torch::Tensor& hidden,
    int64_t k,
    int64_t vocabulary) const {
  const torch::NoGradGuard no_grad;
  // Whose logits are in memory at once.
  constexpr int64_t kRows = 256;
  std::vector<torch::Tensor> ids;
  std::vector<torch::Tensor> log_probs;
  for (const torch::Tensor& rows : hidden.split(kRows)) {
    const torch::Tensor logits =
        all_logits({context_->tensor_parallel.group}, rows);
    // Rows that no token has are among all others, as the student has them.
    const auto [values, places] =
        torch::log_softmax(logits.to(torch::kFloat), 1)
            .narrow(1, 0, vocabulary)
            .topk(k, 1);
    ids.push_back(places);
    log_probs.push_back(values);
  }
  return {torch::cat(ids), torch::cat(log_probs)};
}

torch::Tensor DecoderModel::logits(
    const torch::Tensor& ids,
    const Observe& observe) {
  const torch::NoGradGuard no_grad;
  const TensorParallel parallel{context_->tensor_parallel.group};
  AttentionInputs inputs{ids.size(0), {}, {}};
  begin_forward(torch::arange(ids.size(1), ids.options()));
  ResidualStream stream{
      embed(parallel, ids, {ops::WeightGrad::kReturn, context_->kernels}), {}};
  observe("embedding", stream.delta);
  for (size_t i = 0; i < layers_.size(); ++i) {
    inputs.rotary = rotary_.of_layer(i);
    stream = layers_[i]->forward(stream, inputs, {});
    observe("layer " + std::to_string(i), join(stream));
  }
  const torch::Tensor logits =
      all_logits(parallel, norm_->forward(stream).delta);
  observe("logits", logits);
  return logits.unflatten(0, {ids.size(0), ids.size(1)});
}

torch::Tensor DecoderModel::generate(
    const torch::Tensor& ids,
    const torch::Tensor& input,
    GenerationState& state) {
  const torch::NoGradGuard no_grad;
  BRIGADE_ASSERT(
      context_->tensor_parallel.tokens == TokenLayout::kReplicated,
      "single tokens cannot be cut for sequence parallel");
  const TensorParallel& parallel = context_->tensor_parallel;
  const int64_t rows = ids.size(0);
  const int64_t tokens = ids.size(1);
  state.caches.resize(layers_.size());
  AttentionInputs inputs{rows, {}, {}};
  begin_forward(
      torch::arange(state.length, state.length + tokens, ids.options()));
  state.length += tokens;
  ResidualStream stream{input, {}};
  if (part_.is_first)
    stream.delta =
        embed(parallel, ids, {ops::WeightGrad::kReturn, context_->kernels});
  for (size_t i = 0; i < layers_.size(); ++i) {
    inputs.rotary = rotary_.of_layer(i);
    stream = layers_[i]->forward_cached(stream, inputs, state.caches[i]);
  }
  if (!part_.is_last)
    return join(stream);
  const auto hidden = norm_->forward(stream).delta;
  const auto last =
      hidden.unflatten(0, {rows, tokens}).select(1, tokens - 1).contiguous();
  return all_logits(parallel, last).to(torch::kFloat);
}

torch::Tensor through_stages(
    const DecoderModel& model,
    const ProcessMesh& mesh,
    const torch::Tensor& ids,
    const std::function<torch::Tensor(const torch::Tensor& input)>& run) {
  Communicator& stages = *mesh.axis(Axis::kPp);
  const ModelContext& context = model.context();
  torch::Tensor input;
  if (!model.part().is_first) {
    input = torch::empty(
        {ids.numel(), context.description.hidden_size}, context.dtype);
    stages.recv(input, stages.rank() - 1)->wait();
  }
  const torch::Tensor output = run(input);
  if (model.part().is_last)
    return output;
  stages.send(output.contiguous(), stages.rank() + 1)->wait();
  return {};
}

}  // namespace brigade
