// Modules that only hold weights, so that parameters get the names of the
// table; the maths is in the blocks that use them.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "brigade/model/model_context.h"

namespace brigade {

// A weight and, where the table has one, a bias; undefined without.
// Uninitialised.
struct Weights : torch::nn::Module {
  torch::Tensor weight;
  torch::Tensor bias;
};

// Makes this tp rank's part of the parameters that the model's table lists
// under one prefix. Cheap to copy.
class ParameterSource {
 public:
  explicit ParameterSource(const ModelContext& context);

  // For the parameters NAME.*.
  ParameterSource inside(const std::string& name) const;
  // NAME.weight and NAME.bias.
  std::shared_ptr<Weights> make(const std::string& name) const;

 private:
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  std::shared_ptr<const Shapes> shapes_;  // of the local parts, by full name
  torch::ScalarType dtype_;
  std::string prefix_;  // "model.layers.0."
};

}  // namespace brigade
