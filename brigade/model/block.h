// One transformer block, pre-norm: x + attention(norm(x)), then the same with
// the MLP. The residual stream travels as a pair (delta, residual) whose sum
// it is, so that each add is fused into the norm that follows it.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "brigade/model/attention.h"
#include "brigade/model/mlp.h"

namespace brigade {

struct ResidualStream {
  torch::Tensor delta;     // [B, T, C]
  torch::Tensor residual;  // [B, T, C]; undefined: delta is the whole stream
};

// The whole stream, [B, T, C].
torch::Tensor join(const ResidualStream& stream);

class Block : public torch::nn::Module {
 public:
  explicit Block(const ModelContext& context);

  ResidualStream forward(
      const ResidualStream& stream,
      const ops::AttentionOptions& mask);
  ResidualStream forward_cached(
      const ResidualStream& stream,
      const ops::RotaryTable& rotary,
      SelfAttention::KeyValueCache& cache);

 private:
  template <typename Attend>
  ResidualStream run(const ResidualStream& stream, const Attend& attend);

  ModelContext context_;
  std::shared_ptr<SelfAttention> self_attn_;
  std::shared_ptr<Mlp> mlp_;
  std::shared_ptr<NormWeight> input_layernorm_, post_attention_layernorm_;
};

// rms_norm of the stream, and the stream as the residual of what follows.
ResidualStream norm(
    const ResidualStream& stream,
    const torch::Tensor& weight,
    const ModelContext& context);

}  // namespace brigade
