// The residual stream and the norms that read it.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "brigade/model/model_context.h"
#include "brigade/model/weights.h"
#include "brigade/ops/rms_norm.h"

namespace brigade {

// The stream as a pair whose sum it is, so that each add is fused into the norm
// that follows it. Each [N, C], or [N/tp, C] in TokenLayout::kSharded.
struct ResidualStream {
  torch::Tensor delta;
  torch::Tensor residual;  // undefined: delta is the whole stream
};

// The whole stream as one tensor.
torch::Tensor join(const ResidualStream& stream);

// RMSNorm over the last dim, with its weight.
class Norm {
 public:
  // Registers its weight in `parent` under the description's name.
  Norm(
      torch::nn::Module& parent,
      const NormDescription& description,
      const ParameterSource& source,
      ops::OpOptions options);

  // x: [.., size]; returns the same.
  torch::Tensor forward(const torch::Tensor& x) const;
  // x: a rank's part of a last dim that the group's ranks divide, as they do
  // the weight.
  torch::Tensor forward(const torch::Tensor& x, const CommunicatorPtr& group)
      const;
  // delta: the norm of the stream; residual: the stream.
  ResidualStream forward(const ResidualStream& stream) const;

 private:
  ops::RmsNormFormula formula_;
  ops::OpOptions options_;
  std::shared_ptr<Weights> weights_;
};

}  // namespace brigade
