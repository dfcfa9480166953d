// A parameter on this rank, and all that the rest of the program needs to know
// of it: what of the whole it is, over which ranks its gradient is reduced,
// which unit it is gathered with, and what is kept beside it.
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

// The ranks that hold a parameter and sum its gradient; with ZeRO each owns a
// range of it.
struct ParamGroup {
  CommunicatorPtr ranks;  // null: all ranks that wrap the module
  // What a mean (Reduction::kMean) divides the sum by; 0: the number of ranks.
  // Of an expert, whose gradient covers the tokens of more ranks than hold it,
  // the number of those.
  double mean_divisor = 0;
  bool operator==(const ParamGroup&) const = default;
};

struct Param {
  std::string name;      // under which errors, checks and checkpoints know it
  torch::Tensor tensor;  // the weight
  // Of a matrix: a step's gradient leaves most rows zero, as that of an
  // embedding does whose vocabulary is large for the tokens of a step. Only a
  // hint on what to send: sums are the same.
  bool is_row_sparse = false;
  // Autograd gives it sparse tensors as gradients (EmbeddingOptions::sparse).
  bool has_sparse_gradient = false;
  // Shares its bucket with no other: where its range of the flat memory must be
  // that of a twin in another model part (tied embeddings of a pipeline).
  bool has_own_bucket = false;
  ParamGroup group;
  // Sharding::kParameters: weights of one unit are gathered and freed together.
  // From 0 on, none left out.
  int unit = 0;
  // Another parameter or buffer of the module with which it shares memory; "":
  // none.
  std::string shares_memory_with = {};
  // What has the place of its data while the module computes (ComputeCopies);
  // undefined: nothing.
  torch::Tensor compute_copy;
  // Of the tensor when it was wrapped, whatever its compute copy has.
  torch::ScalarType dtype = torch::kFloat;

  // Of a model's part. For a library user's module null and the whole, with its
  // shape when it was wrapped.
  std::shared_ptr<const ParameterRow> row;
  ParamShard cut;
  // The last stage's copy of a tied embedding, which belongs to the first.
  bool is_copy_for_head = false;

  // ---- in flat memory (ParamMemory), where it has a place there

  torch::Tensor flat_weight;  // where its values are; undefined: anywhere
  torch::Tensor main_grad;    // shaped as it; of sparse ones without elements
  RunPart owned;              // what this rank owns, of segment `run`

  // What an optimizer and low-communication training keep, shaped as the
  // weight. Filled in where parameters are walked (ParamSet::visit(),
  // LocalTraining::visit()); views of flat memory.
  std::vector<State> states;

  bool is_replaced_by_copy() const {
    return compute_copy.defined() && tensor.is_alias_of(compute_copy);
  }
  // A state by its name; undefined: it has none.
  torch::Tensor state(std::string_view state_name) const;
  // Whether this rank stores it and counts it in norms: no other rank of the
  // model holds it too.
  bool is_counted_here() const {
    return cut.is_first_replica && !is_copy_for_head;
  }
};

// The parameters of each group, by index; groups in the order of their first
// parameters.
std::vector<std::vector<size_t>> groups_of(std::span<const Param> params);

// A parameter of `part`: its row, cut (shard_parameter()) and hints; `weight`
// is what the rank has of it.
Param make_param(
    const ParameterRow& row,
    const ModelPart& part,
    ParamShard cut,
    torch::Tensor weight);

// A view of a part of a tensor.
torch::Tensor take_slice(const torch::Tensor& full, const Slice& slice);
// The same, padded with zeros to the length that `shape` has along the slice:
// what a rank holds of a whole tensor.
torch::Tensor take_shard(
    const torch::Tensor& full,
    const Slice& slice,
    torch::IntArrayRef shape);

}  // namespace brigade
