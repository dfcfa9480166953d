// Whether the ranks that hold the same weights still hold the same bits: memory
// that fails flips them without a word.
#pragma once

#include <torch/types.h>

#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/param/param.h"

namespace brigade {

struct UnlikeReplica {
  std::string name;        // of the first tensor that differs
  std::vector<int> ranks;  // of the group: the fewer; of two, both
};

// Collective over the replicas: as many tensors, in one order, on every rank.
// Compares a sum over each tensor's bits, which any one flipped bit changes.
// Costs a pass over the memory and an all-reduce of 16 bytes per tensor.
std::optional<UnlikeReplica> find_unlike_replica(
    const std::vector<State>& replicas,
    Communicator& group);

}  // namespace brigade
