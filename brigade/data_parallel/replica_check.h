// Replicas must start alike: the same parameters, with rank 0's values.
#pragma once

#include <string>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

struct NamedParam;

// Collective. Throws CommError on every rank when names, shapes or dtypes
// differ, naming the first parameter that does and both values. Costs one
// all_gather of 8 bytes, and of the descriptions where they differ.
void check_replicas_alike(
    const std::vector<NamedParam>& params,
    Communicator& communicator);

// Collective: one broadcast a tensor, n bytes each.
void broadcast_from_rank_0(
    const std::vector<torch::Tensor>& tensors,
    Communicator& communicator);

}  // namespace brigade
