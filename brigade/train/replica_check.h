// Whether the ranks that hold the same weights still hold the same bits: memory
// that fails flips them without a word.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/param/param.h"
#include "brigade/sharding/param_set.h"

namespace brigade {

// The sum over the elements' bits, read as whole numbers: any one flipped bit
// changes it. Of any dtype with elements of 1, 2, 4 or 8 bytes. Waits for the
// tensor's device. Costs a pass over the memory.
int64_t sum_of_bits(const torch::Tensor& tensor);

struct UnlikeReplica {
  std::string name;        // of the first tensor that differs
  std::vector<int> ranks;  // the fewer of the group; of two, both
};

// Collective over the replicas: as many tensors, in one order, on every rank.
// Compares a sum over each tensor's bits, which any one flipped bit changes.
// Costs a pass over the memory and an all-reduce of 16 bytes per tensor.
std::optional<UnlikeReplica> find_unlike_replica(
    const std::vector<State>& replicas,
    Communicator& group);

// Collective over the replicas of a model part after step `step`, looked at
// every `check_every` steps. Throws an Error that names the ranks whose weights
// or states differ.
void check_replicas(const ParamSet& params, int64_t step, int64_t check_every);

}  // namespace brigade
