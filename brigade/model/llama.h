// A Llama-family causal language model, or the part of one that a pipeline
// stage holds, with Hugging Face's parameter names.
#pragma once

#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <vector>

#include "brigade/model/block.h"
#include "brigade/topology/layer_partition.h"

namespace brigade {

// Which part of the model: the first one embeds, the last one has the final
// norm and the head.
struct ModelPart {
  LayerRange layers;
  bool is_first = true;
  bool is_last = true;
};
ModelPart whole_model(const LlamaConfig& config);

class Llama : public torch::nn::Module {
 public:
  // Parameters are uninitialised: see init_weights() and load_weights().
  Llama(const ModelContext& context, const ModelPart& part);

  // One micro-batch through this part. `input`: [B, T, C] from the part before
  // (undefined in the first). Returns [B, T, C], or in the last part the sum of
  // the losses over the micro-batch's tokens, a float32 scalar, whose gradient
  // must be 1 (the trainer folds 1 / tokens into the optimizer).
  // `positions`: int64 [T], the place in the sequence of each local token.
  torch::Tensor forward(
      const MicroBatch& batch,
      const torch::Tensor& input,
      const torch::Tensor& positions);

  // The final hidden states' logits, [B, T, V], for a part that is the whole
  // model. Under NoGradGuard; for tests and generation.
  torch::Tensor logits(const torch::Tensor& ids);

  // Generation with a cache: ids [B, T] after those already in the cache.
  // Returns the last token's logits, float32 [B, V].
  struct GenerationState {
    std::vector<SelfAttention::KeyValueCache> caches;  // one a layer
    int64_t length = 0;                                // tokens in the caches
  };
  torch::Tensor next_token_logits(
      const torch::Tensor& ids,
      GenerationState& state);

  const ModelContext& context() const { return context_; }
  const ModelPart& part() const { return part_; }

 private:
  const torch::Tensor& head_weight() const;
  torch::Tensor embed(const torch::Tensor& ids);
  const ops::RotaryTable& rotary_table(const torch::Tensor& positions);

  ModelContext context_;
  ModelPart part_;
  std::shared_ptr<LinearWeights> embed_tokens_;  // [V, C]
  std::vector<std::shared_ptr<Block>> layers_;
  std::shared_ptr<NormWeight> norm_;
  std::shared_ptr<LinearWeights> lm_head_;  // [V, C]; null when tied
  // The latest positions' table: they are the same from step to step.
  torch::Tensor table_positions_;
  ops::RotaryTable table_;
};

}  // namespace brigade
