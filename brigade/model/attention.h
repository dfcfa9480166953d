// Self-attention of a Llama block: q/k/v as one product, rotary embedding and
// grouped-query attention in one op, output projection.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "brigade/model/model_context.h"
#include "brigade/model/weights.h"

namespace brigade {

class SelfAttention : public torch::nn::Module {
 public:
  explicit SelfAttention(const ModelContext& context);

  // x: [B, T, C], normalised. `mask` says which keys a query sees and how q and
  // k are rotated. Returns [B, T, C].
  torch::Tensor forward(
      const torch::Tensor& x,
      const ops::AttentionOptions& mask);

  // One step of generation: x: [B, T, C] at positions after those in the
  // cache; keys and values of x are appended to it.
  struct KeyValueCache {
    torch::Tensor keys;    // [B, S, Hkv, D], rotated; undefined: empty
    torch::Tensor values;  // [B, S, Hkv, D]
  };
  torch::Tensor forward_cached(
      const torch::Tensor& x,
      const ops::RotaryTable& rotary,
      KeyValueCache& cache);

 private:
  struct Heads {
    torch::Tensor q, k, v;  // [B, T, H or Hkv, D]
  };
  Heads project(const torch::Tensor& x);
  torch::Tensor project_output(const torch::Tensor& out);

  ModelContext context_;
  std::shared_ptr<LinearWeights> q_proj_, k_proj_, v_proj_, o_proj_;
  std::shared_ptr<NormWeight> q_norm_, k_norm_;  // Qwen3
};

}  // namespace brigade
