// The parameters of a wrapped module: checked when it is wrapped, alike on all
// ranks from then on, and watched for changes that would break that.
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
  // Collective over `all`, and over each parameter's group, which is of ranks
  // of `all`; a parameter without one gets `all`. Throws on every rank, before
  // any value is sent: ConfigError when some rank has nothing to synchronise or
  // a parameter that cannot be (wrapped already, on another device, complex,
  // with kMove in memory that another tensor shares), CommError naming both
  // sides when ranks of a group differ in names, order, shapes, strides,
  // dtypes, which are frozen, which of these share memory, or any ranks in the
  // sizes of groups or in `options`, one "name: value" per line. Costs two
  // all-gathers of 16 bytes, and one in each group that is not all ranks.
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
  // Those that have a place in flat memory: trainable(), and behind them the
  // frozen ones that share memory with no other tensor.
  std::span<Param> laid_out() { return {params_.data(), laid_out_}; }
  // Of trainable(); -1: not among them.
  int index_of(const torch::Tensor& param) const;

  // What belonged to `from` belongs to `to`.
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to);

  // Collective in every group: its ranks get the values of its rank `root`,
  // frozen parameters included.
  void broadcast_from(int root) const;

  // Throws ConfigError naming the parameter whose dtype, shape or requires_grad
  // is no longer what it was when it was wrapped.
  void check_unchanged() const;

 private:
  std::unique_ptr<WrappedMemory> memory_;
  std::vector<Param> params_;  // as laid_out(), then the other frozen ones
  size_t trained_ = 0;
  size_t laid_out_ = 0;
  std::unordered_map<const void*, int> index_of_;  // of trainable(), by tensor
};

// Collective in every group of `params`: of a value per parameter the highest
// among the ranks of its group.
std::vector<int64_t> max_in_groups(
    const std::vector<int64_t>& values,
    std::span<const Param> params);
// ConfigError where uneven inputs cannot be counted: parameters of a group that
// is not `all`.
void check_has_one_group(
    std::span<const Param> params,
    const Communicator& all);

// Collective: one broadcast per tensor, n bytes each.
void broadcast_tensors(
    const std::vector<torch::Tensor>& tensors,
    int root,
    Communicator& group);

}  // namespace brigade
