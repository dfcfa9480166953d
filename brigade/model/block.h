// One transformer block as a LayerDescription says: attention and an MLP or
// experts, each added to the residual stream, with norms before and, in some
// models, after.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "brigade/model/attention.h"
#include "brigade/model/experts.h"
#include "brigade/model/mlp.h"
#include "brigade/model/norm.h"

namespace brigade {

class Block : public torch::nn::Module {
 public:
  Block(
      const ModelContextPtr& context,
      int64_t index,  // of the layer in the whole model
      const LayerDescription& layer,
      const ExpertRange& experts,
      const ParameterSource& source);

  ResidualStream forward(
      const ResidualStream& stream,
      const AttentionInputs& inputs,
      const ExpertInputs& expert_inputs);
  ResidualStream forward_cached(
      const ResidualStream& stream,
      const AttentionInputs& inputs,
      SelfAttention::KeyValueCache& cache);

 private:
  template <typename Attend, typename Mix>
  ResidualStream
  run(const ResidualStream& stream, const Attend& attend, const Mix& mix);

  ModelContextPtr context_;
  std::shared_ptr<SelfAttention> self_attn_;
  std::shared_ptr<Mlp> mlp_;          // null: it has experts
  std::shared_ptr<Experts> experts_;  // null: it has an MLP
  // Absent: the identity.
  std::optional<Norm> before_attention_, after_attention_;
  std::optional<Norm> before_mlp_, after_mlp_;
};

}  // namespace brigade
