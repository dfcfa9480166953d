// The parameters of a wrapped module: checked to be the same on all ranks when
// it is wrapped, and for changes that would break that afterwards.
#pragma once

#include <torch/types.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/shared_memory.h"
#include "brigade/param/param_memory.h"

namespace brigade {

class WrappedParams {
 public:
  // Collective over `all`, and over each parameter's group, whose ranks are
  // some of `all`; a parameter without a group gets `all`. Throws on every
  // rank, before any value is sent: UsageError when some rank has nothing to
  // synchronise or a parameter that cannot be (wrapped already, on another
  // device, complex, with kMove in memory that another tensor shares),
  // CommError naming both sides when ranks of a group differ in names, order,
  // shapes, strides, dtypes, in which parameters are frozen or in which of
  // these share memory, or when any ranks differ in the sizes of groups or in
  // `options` (one "name: value" per line). Then broadcasts the values of each
  // group's rank 0. Costs two all-gathers of 16 bytes besides; with further
  // groups also one in each of them, and a third over `all`.
  WrappedParams(
      std::vector<Param> params,
      const std::string& options,
      FlatWeights weights,
      const CommunicatorPtr& all);

  std::span<const Param> trainable() const {
    return {params_.data(), trained_};
  }
  std::span<const Param> frozen() const {
    return std::span(params_).subspan(trained_);
  }
  // The parameters that have a place in flat memory: trainable(), followed by
  // the frozen ones that share memory with no other tensor.
  std::span<Param> laid_out() { return {params_.data(), laid_out_}; }
  // The index in trainable(); -1 if it is not among them.
  int index_of(const torch::Tensor& param) const;

  // Parameters whose group was `from` belong to `to`.
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);

  // Collective in every group: its ranks get the values of its rank `root`,
  // frozen parameters included.
  void broadcast_from(int root) const;

  // Throws UsageError naming the parameter whose dtype, shape or requires_grad
  // is no longer what it was when it was wrapped.
  void check_unchanged() const;

 private:
  std::unique_ptr<WrappedMemory> memory_;
  std::vector<Param> params_;  // as laid_out(), then the other frozen ones
  size_t trained_ = 0;
  size_t laid_out_ = 0;
  std::unordered_map<const void*, int> index_of_;  // of trainable(), by tensor
};

// Collective in every group of `params`: returns for each parameter the highest
// value among the ranks of its group.
std::vector<int64_t> max_in_groups(
    const std::vector<int64_t>& values,
    std::span<const Param> params);
// Throws UsageError if a parameter's group is not `all`: uneven inputs cannot
// be counted then.
void check_has_one_group(
    std::span<const Param> params,
    const Communicator& all);

// Collective: one broadcast per tensor, n bytes each.
void broadcast_tensors(
    const std::vector<torch::Tensor>& tensors,
    int root,
    Communicator& group);

}  // namespace brigade
