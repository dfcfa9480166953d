// Checks that the parameters of a module are the same on all ranks when it is
// wrapped, and finds changes that would break that afterwards.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/param/param_memory.h"
#include "brigade/sharding/param_set.h"

namespace brigade {

// Returns `params`, each with a group (`all` if it had none), its dtype, shape
// and sharers. Collective over `all`, and over each parameter's group, whose
// ranks are some of `all`. Throws on every rank, before any value is sent:
// UsageError when some rank has nothing to synchronise or a parameter that
// cannot be (wrapped already, on another device, complex, with kMove in memory
// that another tensor shares), CommError naming both sides when ranks of a
// group differ in names, order, shapes, strides, dtypes, in which parameters
// are frozen or in which of these share memory, or when any ranks differ in the
// sizes of groups or in `options` (one "name: value" per line). Costs two
// all-gathers of 16 bytes; with further groups also one in each of them, and a
// third over `all`.
std::vector<Param> check_params(
    std::vector<Param> params,
    const std::string& options,
    FlatWeights weights,
    const CommunicatorPtr& all);

// Throws UsageError naming the parameter whose dtype, shape or requires_grad is
// no longer what it was when it was wrapped.
void check_unchanged(const ParamSet& params);

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

// Collective in every group: its ranks get the values of its rank `root`.
void broadcast_params(std::span<const Param> params, int root);
// Collective: one broadcast per tensor, n bytes each.
void broadcast_tensors(
    const std::vector<torch::Tensor>& tensors,
    int root,
    Communicator& group);

}  // namespace brigade
