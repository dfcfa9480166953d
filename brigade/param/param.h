// A parameter on this rank, and all that the rest of the program needs to know
// of it: which part of the whole it is, over which ranks its gradient is
// reduced, which unit it is gathered with, and its states.
#pragma once

#include <torch/types.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/base/flat_range.h"
#include "brigade/comm/communicator.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/model_spec/shard.h"
#include "brigade/param/state.h"

namespace brigade {

struct Param {
  std::string name;      // under which errors, checks and checkpoints know it
  torch::Tensor tensor;  // the weight
  // A step's gradient of this matrix leaves most rows zero, as for an embedding
  // whose vocabulary is large for a step's tokens. Only a hint on what to send:
  // sums are the same.
  bool is_row_sparse = false;
  // Autograd gives it sparse tensors as gradients (EmbeddingOptions::sparse).
  bool has_sparse_gradient = false;
  // Has a bucket of its own, because its range of the flat memory must be that
  // of a twin in another model part (tied embeddings of a pipeline).
  bool has_own_bucket = false;
  // The ranks that hold it and sum its gradient; with ZeRO each owns a range of
  // it. Null: all ranks that wrap the module.
  CommunicatorPtr group;
  // What a mean (Reduction::kMean) divides the sum by; 0: the group's size. For
  // an expert it is the number of ranks whose tokens its gradient covers; fewer
  // ranks than that hold the expert.
  double mean_divisor = 0;
  // Weights of one unit are read together (GatheredWeights::use()), and with
  // Sharding::kParameters (ZeRO-3, FSDP) gathered and freed together. Units are
  // numbered from 0 without gaps.
  int unit = 0;
  // Another parameter or buffer of the module that it shares memory with; "":
  // none.
  std::string shares_memory_with = {};
  // Replaces its data while the module computes (ComputeCopies); undefined:
  // nothing does.
  torch::Tensor compute_copy;
  // The dtype of the tensor when it was wrapped, whatever its compute copy's
  // is.
  torch::ScalarType dtype = torch::kFloat;

  // The row and cut of a model part's parameter. For a library user's module
  // the row is null, and the cut is the whole, with its shape when it was
  // wrapped.
  std::shared_ptr<const ParameterRow> row;
  ParamShard cut;
  // The last stage's copy of a tied embedding, which belongs to the first.
  bool is_copy_for_head = false;

  // ---- its place in flat memory (ParamMemory, ShardedWeights), if it has one

  torch::Tensor flat_weight;  // its values; undefined: they are elsewhere
  torch::Tensor main_grad;    // shaped as it; empty for sparse gradients
  RunPart owned;              // the part that this rank owns, in segment `run`
  int64_t accepted_version = 0;  // of tensor: ShardedWeights::accept_writes()

  // What is kept beside it. In a ParamSet an optimizer's states, as
  // ParamSet::swap_states() has them; in its walks whole, shaped as the
  // parameter, and in LocalTraining::visit() with those of the exchange.
  std::vector<State> states;

  bool is_replaced_by_copy() const {
    return compute_copy.defined() && tensor.is_alias_of(compute_copy);
  }
  // A state by its name; undefined: it has none.
  torch::Tensor state(std::string_view state_name) const;
  // Whether this rank stores it and counts it in norms: only one of the model's
  // ranks that hold the same part does.
  bool is_counted_here() const {
    return cut.is_first_replica && !is_copy_for_head;
  }
};

// The parameters' indices, one list per group and mean_divisor, in the order of
// their first parameters.
std::vector<std::vector<size_t>> groups_of(std::span<const Param> params);

// A parameter of `part`: its row, cut (shard_parameter()) and hints; `weight`
// is this rank's part of it.
Param make_param(
    const ParameterRow& row,
    const ModelPart& part,
    ParamShard cut,
    torch::Tensor weight);

// A view of a part of a tensor.
torch::Tensor take_slice(const torch::Tensor& full, const Slice& slice);
// A rank's part of a whole tensor: the slice, padded with zeros to the length
// that `shape` has along it.
torch::Tensor take_shard(
    const torch::Tensor& full,
    const Slice& slice,
    torch::IntArrayRef shape);

}  // namespace brigade
