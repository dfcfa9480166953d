// A causal language model as a ModelDescription says, or the part of one that a
// pipeline stage holds. Its parameters are those of the model's table
// (model_spec/parameter_table.h), each this tp rank's shard
// (model_spec/shard.h).
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/model/block.h"
#include "brigade/model/rotary_tables.h"
#include "brigade/model_spec/model_part.h"

namespace brigade {

class DecoderModel : public torch::nn::Module {
 public:
  // Parameters are uninitialised: see model/init_weights.h and
  // checkpoint/hugging_face.h.
  DecoderModel(ModelContextPtr context, const ModelPart& part);

  // One micro-batch through this part. `input`: the stream from the part
  // before, [N, C] ([N/tp, C] in TokenLayout::kSharded), undefined in the
  // first. Returns the stream, or in the last part the sum of the losses of its
  // tokens, or the context's objective: a float32 scalar whose gradient must be
  // 1 (the trainer folds 1 / tokens into the optimizer).
  // `positions`: int64 [T], the place in the sequence of each local token.
  torch::Tensor forward(
      const MicroBatch& batch,
      const torch::Tensor& input,
      const torch::Tensor& positions);

  // The k likeliest of the first `vocabulary` tokens at each of N places,
  // likeliest first.
  struct TopTokens {
    torch::Tensor ids;        // int64 [N, k]
    torch::Tensor log_probs;  // float32 [N, k], of a softmax over all rows
  };
  // As forward(), but from the last part what its head reads, [N, C], of which
  // top_tokens() says the rest; not in TokenLayout::kSharded. Builds no graph.
  torch::Tensor hidden(
      const MicroBatch& batch,
      const torch::Tensor& input,
      const torch::Tensor& positions);
  TopTokens
  top_tokens(const torch::Tensor& hidden, int64_t k, int64_t vocabulary) const;

  // What logits() computes on the way, under its name: "embedding", "layer 0"
  // (the stream after it), ..., "logits".
  using Observe =
      std::function<void(const std::string& name, const torch::Tensor& value)>;
  // All logits, [B, T, V] in the model's dtype, of a part that is the whole
  // model. Builds no graph; for tests and for looking at activations.
  torch::Tensor logits(
      const torch::Tensor& ids,
      const Observe& observe = [](const auto&, const auto&) {});

  // Generation with a cache, without a graph. Tokens already in the caches:
  struct GenerationState {
    std::vector<SelfAttention::KeyValueCache> caches;  // one per layer
    int64_t length = 0;
  };
  // ids: [B, T] after those; `input`: the stream of the part before, [B * T,
  // C]. Returns the stream or, from the last part, the last token's logits,
  // float32 [B, V].
  torch::Tensor generate(
      const torch::Tensor& ids,
      const torch::Tensor& input,
      GenerationState& state);

  const ModelContext& context() const { return *context_; }
  const ModelPart& part() const { return part_; }

 private:
  const torch::Tensor& head_weight() const;
  // Says of the tokens of a forward what its layers read. positions: int64 [T];
  // token_keys: MicroBatch::token_keys, or undefined: no dropout.
  void begin_forward(
      const torch::Tensor& positions,
      const torch::Tensor& token_keys = {});
  // The stream after the layers; of the last part normed.
  torch::Tensor run_layers(
      const MicroBatch& batch,
      const torch::Tensor& input,
      const torch::Tensor& positions);
  // hidden: [N, C]; returns [N, V].
  torch::Tensor all_logits(
      const TensorParallel& parallel,
      const torch::Tensor& hidden) const;
  // ids: int64, N of them; returns the stream, [N, C] ([N/tp, C] in
  // TokenLayout::kSharded).
  torch::Tensor embed(
      const TensorParallel& parallel,
      const torch::Tensor& ids,
      ops::OpOptions options) const;

  ModelContextPtr context_;
  ModelPart part_;
  std::shared_ptr<Weights> embed_tokens_;  // [V/tp, C]
  std::vector<std::shared_ptr<Block>> layers_;
  bool has_experts_ = false;  // one of its layers
  RotaryTables rotary_;
  std::optional<Norm> norm_;
  std::shared_ptr<Weights> lm_head_;  // [V/tp, C]; null when tied
};

// A forward without backward from stage to stage, of which each rank has one,
// `model`: run(input) of this rank's for `ids`, as forward(), hidden() and
// generate() are called. Returns the last stage's; undefined on the others.
torch::Tensor through_stages(
    const DecoderModel& model,
    const ProcessMesh& mesh,
    const torch::Tensor& ids,
    const std::function<torch::Tensor(const torch::Tensor& input)>& run);

}  // namespace brigade
