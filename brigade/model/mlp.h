// The SwiGLU feed-forward of a Llama block; gate and up are one product.
#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "brigade/model/model_context.h"
#include "brigade/model/weights.h"

namespace brigade {

class Mlp : public torch::nn::Module {
 public:
  explicit Mlp(const ModelContext& context);
  // x: [B, T, C], normalised. Returns [B, T, C].
  torch::Tensor forward(const torch::Tensor& x);

 private:
  ModelContext context_;
  std::shared_ptr<LinearWeights> gate_proj_, up_proj_, down_proj_;
};

}  // namespace brigade
