// Modules that hold the weights of one linear, norm or embedding, so that
// parameters get the names of the table, and that multiply as the context says;
// the rest of the maths is in the blocks that use them.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "brigade/model/model_context.h"

namespace brigade {

// A weight and, where the table has them, a bias, a router's bias and an
// adapter; undefined without. Uninitialised.
struct Weights : torch::nn::Module {
  torch::Tensor weight;
  torch::Tensor bias;
  torch::Tensor score_bias;  // float32
  ops::LowRank adapter;

  // row_parallel_linear() of x, with the context's dropout.
  torch::Tensor row_parallel(
      const ModelContext& context,
      const torch::Tensor& x,
      const ops::RemadeInput& input = {}) const;
  // The product of a linear that is whole on every rank and has so few outputs
  // that it is no matrix for the kernels: a router, or the gate of a shared
  // expert. x: [n, C] of own_tokens(), in whose dtype it is computed; returns
  // [n, out].
  torch::Tensor narrow_product(
      const ModelContext& context,
      const torch::Tensor& x) const;
};

// Linears that the table declares to be multiplied together, in its order.
class GroupedWeights {
 public:
  explicit GroupedWeights(std::vector<std::shared_ptr<Weights>> members)
      : members_(std::move(members)) {}
  size_t size() const { return members_.size(); }
  std::vector<torch::Tensor> weights() const;
  std::vector<ops::LowRank> adapters() const;
  // column_parallel_linear() of x, with the context's dropout.
  std::vector<torch::Tensor> column_parallel(
      const ModelContext& context,
      const torch::Tensor& x) const;

 private:
  std::vector<std::shared_ptr<Weights>> members_;
};

// Makes this tp rank's part of the parameters that the model's table lists
// under one prefix. Cheap to copy.
class ParameterSource {
 public:
  explicit ParameterSource(const ModelContext& context);

  // The source of the parameters NAME.*.
  ParameterSource inside(const std::string& name) const;
  // NAME.weight, NAME.bias, NAME.e_score_correction_bias, and an adapter's
  // NAME.lora_A.weight, NAME.lora_B.weight and NAME.lora_magnitude_vector.
  std::shared_ptr<Weights> make(const std::string& name) const;
  // The linears of group NAME, registered in `owner` under their own names.
  GroupedWeights make_group(torch::nn::Module& owner, const std::string& name)
      const;

 private:
  struct Local {
    std::vector<int64_t> shape;
    torch::TensorOptions options;  // dtype and device
  };
  struct Table {
    std::map<std::string, Local> locals;                     // by full name
    std::map<std::string, std::vector<std::string>> groups;  // names of members
  };
  std::shared_ptr<const Table> table_;
  double adapter_scale_;
  std::string prefix_;  // "model.layers.0."
};

}  // namespace brigade
