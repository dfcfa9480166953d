// Self-attention of a block on this rank's heads and tokens: q/k/v as one
// column-parallel product, rotary embedding inside (ring) attention, a
// row-parallel output projection.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>

#include "brigade/model/model_context.h"
#include "brigade/model/norm.h"
#include "brigade/model/weights.h"

namespace brigade {

// Which keys a query sees, and how q and k are rotated.
struct AttentionInputs {
  int64_t rows = 0;               // B
  ops::RotaryTable rotary;        // [T, D/2]
  torch::Tensor document_starts;  // int64 [B, T] or undefined
};

class SelfAttention : public torch::nn::Module {
 public:
  SelfAttention(
      ModelContextPtr context,
      const AttentionDescription& description,
      const ParameterSource& source);

  // x: [N, C] ([N/tp, C] in TokenLayout::kSharded), normalised; returns the
  // same.
  torch::Tensor forward(const torch::Tensor& x, const AttentionInputs& inputs);

  // Generation: x: [B * T, C] at positions after those in the cache, rotated
  // by `rotary`; keys and values of x are appended to the cache.
  struct KeyValueCache {
    torch::Tensor keys;    // [B, S, Hkv/tp, D], rotated; undefined: empty
    torch::Tensor values;  // [B, S, Hkv/tp, D]
  };
  torch::Tensor forward_cached(
      const torch::Tensor& x,
      const AttentionInputs& inputs,
      KeyValueCache& cache);

 private:
  struct Heads {
    torch::Tensor q, k, v;  // [B, T, H/tp or Hkv/tp, D]
  };
  Heads project(const torch::Tensor& x, const AttentionInputs& inputs);
  // [B, T, H, D], so that dims are paired as rotary tables pair them.
  torch::Tensor in_rotary_order(const torch::Tensor& heads) const;
  torch::Tensor project_output(const torch::Tensor& out);
  torch::Tensor attend(const Heads& heads, const AttentionInputs& inputs);
  // What the description says of scores and mask.
  ops::AttentionOptions attention_options() const;

  ModelContextPtr context_;
  AttentionDescription description_;
  GroupedWeights qkv_;
  std::shared_ptr<Weights> o_proj_;
  std::optional<Norm> q_norm_, k_norm_;  // over each head
};

}  // namespace brigade
