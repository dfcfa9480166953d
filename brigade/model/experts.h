// Mixture of experts in a block: a router sends each token to k of E MLPs, of
// which this rank holds a range, and adds up the results, with the shared
// expert's (model_spec/model_description.h).
// Collectives, in this order on all ranks: tp's on entering, with a capacity
// cp's (every token of a sequence has to be known), the exchange of rows
// between the ranks of ep (expert_parallel/expert_exchange.h), tp's on leaving.
// During the exchange the shared expert computes, with collectives of its own
// (where ep is 1, it comes last). Without one the rows of one half of a rank's
// experts travel while the other half computes. Each tp rank has a part of
// every expert's features and of its sum; all of them make the same choice.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "brigade/model/mlp.h"
#include "brigade/model/router.h"
#include "brigade/model_spec/model_part.h"

namespace brigade {

class Experts : public torch::nn::Module {
 public:
  // Those of layer `layer` of the whole model. The experts of `range` are this
  // rank's, by its place in context->expert_parallel.
  Experts(
      const ModelContextPtr& context,
      int64_t layer,
      const ExpertsDescription& description,
      const ExpertRange& range,
      const ParameterSource& source);

  // x: [N, C] ([N/tp, C] in TokenLayout::kSharded), normalised; returns the
  // same. `kept` outlives backward where this is computed again there.
  torch::Tensor forward(
      const torch::Tensor& x,
      const ExpertInputs& inputs,
      KeptRouting& kept);

 private:
  struct Expert {
    GroupedWeights gate_up;
    std::shared_ptr<Weights> down;
  };
  void add_expert(
      torch::nn::Module& parent,
      int64_t expert,
      const ParameterSource& source);
  // What ops::order_by_expert() is to keep of experts, int64 [N, k]; undefined:
  // everything. Collective over cp where there is a capacity.
  torch::Tensor kept_choices(
      const torch::Tensor& experts,
      const ExpertInputs& inputs) const;
  int64_t parts_of_exchange() const;
  // rows: [R, C], of each expert of the part in turn, as kept.exchange says.
  torch::Tensor run_experts(
      const torch::Tensor& rows,
      const KeptRouting& kept,
      size_t part) const;
  bool has_adapters() const;
  torch::Tensor run_whole_experts(
      const torch::Tensor& rows,
      const std::vector<int64_t>& counts,
      std::span<const Expert> experts) const;
  torch::Tensor run_adapted_expert(
      const Expert& expert,
      const torch::Tensor& rows,
      const torch::Tensor& row_keys) const;
  // KeptRouting::row_keys. Collective over context_->expert_parallel.
  std::vector<torch::Tensor> keys_of_rows(const KeptRouting& kept) const;
  torch::Tensor run_shared(const torch::Tensor& x);

  // Adds to context_->routers, if they are noted. experts: int64 [N, k], what
  // the rank's N tokens chose, with those of its tp group that divide them.
  void note_routing(
      const torch::Tensor& experts,
      const ExpertInputs& inputs,
      const ops::ExpertOrder& order,
      const torch::Tensor& weights) const;
  // KeptRouting::load where it is not the sequences' own; else undefined.
  torch::Tensor given_shares(const torch::Tensor& x, const ExpertInputs& inputs)
      const;

  ModelContextPtr context_;
  int64_t layer_;
  ExpertsDescription description_;
  std::optional<Router> router_;
  std::vector<Expert> experts_;
  std::shared_ptr<Mlp> shared_;           // null: there is none
  std::shared_ptr<Weights> shared_gate_;  // null: it has none
};

}  // namespace brigade
