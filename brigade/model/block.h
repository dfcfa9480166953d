// One transformer block, pre-norm: x + attention(norm(x)), then the same with
// the MLP. The residual stream travels as a pair (delta, residual) whose sum
// it is, so that each add is fused into the norm that follows it.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "brigade/model/attention.h"
#include "brigade/model/mlp.h"

namespace brigade {

// Each [N, C], or [N/tp, C] in TokenLayout::kSharded.
struct ResidualStream {
  torch::Tensor delta;
  torch::Tensor residual;  // undefined: delta is the whole stream
};

// The whole stream as one tensor.
torch::Tensor join(const ResidualStream& stream);

// delta: rms_norm of the stream; residual: the stream.
ResidualStream norm(
    const ResidualStream& stream,
    const torch::Tensor& weight,
    const ModelContext& context);

class Block : public torch::nn::Module {
 public:
  explicit Block(ModelContextPtr context);

  ResidualStream forward(
      const ResidualStream& stream,
      const AttentionInputs& inputs);
  ResidualStream forward_cached(
      const ResidualStream& stream,
      const AttentionInputs& inputs,
      SelfAttention::KeyValueCache& cache);

 private:
  template <typename Attend>
  ResidualStream run(const ResidualStream& stream, const Attend& attend);

  ModelContextPtr context_;
  std::shared_ptr<SelfAttention> self_attn_;
  std::shared_ptr<Mlp> mlp_;
  std::shared_ptr<NormWeight> input_layernorm_, post_attention_layernorm_;
};

}  // namespace brigade
