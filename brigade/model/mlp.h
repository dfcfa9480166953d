// The SwiGLU feed-forward of a Llama block on this rank's columns: gate and up
// as one column-parallel product, down row-parallel.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "brigade/model/model_context.h"
#include "brigade/model/weights.h"

namespace brigade {

class Mlp : public torch::nn::Module {
 public:
  explicit Mlp(ModelContextPtr context);
  // x: [N, C] ([N/tp, C] in TokenLayout::kSharded), normalised; returns the
  // same.
  torch::Tensor forward(const torch::Tensor& x);

 private:
  ModelContextPtr context_;
  std::shared_ptr<LinearWeights> gate_proj_, up_proj_, down_proj_;
};

}  // namespace brigade
