// What the parts of a model need to know of their surroundings.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>

#include "brigade/model/router_statistics.h"
#include "brigade/model_spec/activation_recompute.h"
#include "brigade/model_spec/model_description.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/model_spec/shard.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/op_options.h"
#include "brigade/ops/soft_targets.h"
#include "brigade/options/router_balance.h"
#include "brigade/tensor_parallel/tensor_parallel.h"

namespace brigade {

struct MicroBatch;

struct ModelContext {
  ModelDescription description;
  torch::ScalarType dtype = torch::kFloat;
  torch::Device device = torch::kCPU;
  TensorParallel tensor_parallel;  // a group of one when there is none
  CommunicatorPtr context_parallel;
  CommunicatorPtr sequence;         // the ranks that share its sequences
  CommunicatorPtr expert_parallel;  // divides the experts
  RouterLosses router_losses;
  // ExpertInputs::capacity_factor where the model is trained.
  double expert_capacity_factor = 0;
  // Null: nothing is noted, and each sequence is balanced by itself.
  std::shared_ptr<RouterRecord> routers;
  // kAccumulate needs a GradSync that keeps .grad() defined
  // (GradHandover::kMainGrad).
  ops::WeightGrad weight_grad = ops::WeightGrad::kReturn;
  ops::Kernels kernels = ops::Kernels::kAuto;
  // Takes over weight gradients (the zero-bubble pipeline); may be empty.
  std::function<void(std::function<void()> compute)> defer_weight_grad;
  Recompute recompute = Recompute::kNone;
  // What the last part makes of its tokens' losses; empty: their sum.
  std::function<
      ops::Objective(const MicroBatch& batch, const torch::Tensor& losses)>
      objective;
  // A pre-forward hook: called before the weights of a unit are read, which
  // other ranks may still be sending (sharding). May be empty.
  std::function<void(const ModelUnit& unit)> before_forward;
  // A pre-backward hook: called before the backward of a unit begins, whose
  // weights may have to be fetched again. May be empty.
  std::function<void(const ModelUnit& unit)> before_backward;
  // The dropout of the N tokens of the forward under way. Each forward sets it
  // when it begins; a layer that backward computes again restores its own.
  mutable ops::InputDropout dropout;

  // Has before_backward called once backward reaches what `unit` computed;
  // undefined tensors and those without a graph are left alone.
  void announce_backward(const torch::Tensor& output, const ModelUnit& unit)
      const;
  // Each rank has all of its sequences, whatever the mesh.
  void set_whole_sequences();
  // Calls before_forward, where there is one.
  void announce_forward(const ModelUnit& unit) const {
    if (before_forward)
      before_forward(unit);
  }
  // The options of this forward's linears, without adapters.
  ops::LinearOptions linear_options() const {
    return {
        .weight_grad = weight_grad,
        .defer_weight_grad = defer_weight_grad,
        .kernels = kernels,
        .group = ops::WeightGroup::kOneMatrix,
        .dropout = dropout};
  }
  ops::OpOptions op_options() const { return {weight_grad, kernels}; }
};
// Shared by all parts of a model. After they were built only its dropout
// changes: models that share it have one forward or backward at a time.
using ModelContextPtr = std::shared_ptr<const ModelContext>;

// A context with groups of one.
ModelContext single_rank_context(const DecoderConfig& config);

// The tokens of one micro-batch on this rank: B rows, T local tokens (the whole
// sequence's T / cp); N = B * T.
struct MicroBatch {
  torch::Tensor ids;              // int64 [B, T]
  torch::Tensor targets;          // int64 [B, T]; -100: no loss
  torch::Tensor document_starts;  // int64 [B, T] or undefined: one document
  // float64 [B]: the reference model's log-probability of each row's targets;
  // undefined: none is known.
  torch::Tensor reference = {};
  // int64 [B, T]: random bits of each token, which say with the linear's name
  // what dropout leaves of it where a graph is built; undefined: all.
  torch::Tensor token_keys = {};
  // What a teacher says of the N targets; none: nothing.
  std::optional<ops::SoftTargets> teacher = std::nullopt;
  torch::Tensor has_loss() const { return targets >= 0; }  // bool [B, T]
};  // on the model's device

}  // namespace brigade
