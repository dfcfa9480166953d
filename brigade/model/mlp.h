// The gated feed-forward of a block on this rank's columns: gate and up as one
// column-parallel product, down row-parallel.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "brigade/model/model_context.h"
#include "brigade/model/weights.h"

namespace brigade {

class Mlp : public torch::nn::Module {
 public:
  Mlp(ModelContextPtr context,
      const MlpDescription& description,
      const ParameterSource& source);
  // x: [N, C] ([N/tp, C] in TokenLayout::kSharded), normalised; returns the
  // same.
  torch::Tensor forward(const torch::Tensor& x);

 private:
  ModelContextPtr context_;
  Activation activation_;
  GroupedWeights gate_up_;
  std::shared_ptr<Weights> down_proj_;
};

}  // namespace brigade
