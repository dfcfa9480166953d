// The signatures that the ranks of a group compare before a collective if
// CommunicatorOptions::check_collectives is on.
#pragma once

#include <torch/types.h>

#include <string>

#include "brigade/comm/communicator.h"

namespace brigade {

// An int64 tensor on the CPU, equal on all ranks that launch the same
// collective.
torch::Tensor signature_of(const CollectiveRecord& record);

// int64 [2 R]: the rows sent to each rank, then those expected from each.
torch::Tensor signature_of(const RowSplits& splits);

// all: [R, n], the signatures by rank. Throws CommError that lists them if one
// differs from `mine`.
void check_signatures(
    const torch::Tensor& all,
    const torch::Tensor& mine,
    const std::string& group);

// all: [R, 2 R], those of RowSplits by rank. Throws CommError that names each
// pair of ranks in which one sends other rows than the other expects.
void check_splits(
    const torch::Tensor& all,
    const CollectiveRecord& record,
    const std::string& group);

}  // namespace brigade
