// The parameters of a wrapped module: checked when it is wrapped, alike on all
// ranks from then on, and watched for changes that would break that.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// A parameter with the name under which errors and checks know it.
struct NamedParam {
  std::string name;
  torch::Tensor tensor;
  // Of a matrix: a step's gradient leaves most rows zero, as that of an
  // embedding does whose vocabulary is large for the tokens of a step. Only a
  // hint on what to send: sums are the same.
  bool is_row_sparse = false;
  // Autograd gives it sparse tensors as gradients (EmbeddingOptions::sparse).
  bool has_sparse_gradient = false;
  // Shares its bucket with no other: where its range of the flat memory must be
  // that of a twin in another model part (tied embeddings of a pipeline).
  bool has_own_bucket = false;
  // Sharding::kParameters: weights of one unit are gathered and freed together.
  // From 0 on, none left out.
  int unit = 0;
  // What has the place of its data while the module computes (ComputeCopies);
  // undefined: nothing.
  torch::Tensor compute_copy;

  bool is_replaced_by_copy() const {
    return compute_copy.defined() && tensor.is_alias_of(compute_copy);
  }
};

class WrappedParams {
 public:
  // Collective. Throws on every rank, before any value is sent: ConfigError
  // when some rank has nothing to synchronise or a parameter that cannot be
  // (wrapped already, on another device, complex),
  // CommError naming both sides when ranks differ in names, order, shapes,
  // strides, dtypes, which are frozen, or in `options`, one "name: value" per
  // line. Costs two all-gathers of 16 bytes.
  WrappedParams(
      std::vector<NamedParam> params,
      const std::string& options,
      Communicator& group);

  const std::vector<NamedParam>& trainable() const { return trainable_; }
  // trainable() alone.
  std::vector<torch::Tensor> tensors() const;

  // Collective: everyone gets the values of `root`, frozen parameters included.
  void broadcast_from(int root, Communicator& group) const;

  // Throws ConfigError naming the parameter whose dtype, shape or requires_grad
  // is no longer what it was when it was wrapped.
  void check_unchanged() const;
  // Of all that are trainable: whether they were stepped. torch::optim writes
  // data(), which raises no version.
  double sum_of_values() const;

 private:
  std::vector<NamedParam> trainable_;
  std::vector<NamedParam> frozen_;
  std::vector<torch::ScalarType> dtypes_;     // of trainable_
  std::vector<std::vector<int64_t>> shapes_;  // the same
};

// Collective: one broadcast per tensor, n bytes each.
void broadcast_tensors(
    const std::vector<torch::Tensor>& tensors,
    int root,
    Communicator& group);

}  // namespace brigade
