// Modules that only hold weights, so that parameters get Hugging Face's names;
// the maths is in the blocks that use them.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

namespace brigade {

// A linear's weight [out, in] and, if has_bias, bias [out]; uninitialised.
class LinearWeights : public torch::nn::Module {
 public:
  enum class Bias { kNone, kYes };
  LinearWeights(
      int64_t out,
      int64_t in,
      Bias has_bias,
      torch::ScalarType dtype) {
    weight = register_parameter("weight", torch::empty({out, in}, dtype));
    if (has_bias == Bias::kYes)
      bias = register_parameter("bias", torch::empty({out}, dtype));
  }
  torch::Tensor weight;
  torch::Tensor bias;  // undefined without one
};

// A norm's weight [C].
class NormWeight : public torch::nn::Module {
 public:
  NormWeight(int64_t size, torch::ScalarType dtype) {
    weight = register_parameter("weight", torch::empty({size}, dtype));
  }
  torch::Tensor weight;
};

}  // namespace brigade
