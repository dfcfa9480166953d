// What the ranks of a group compare before a collective, where
// CommunicatorOptions::check_collectives is on.
#pragma once

#include <torch/types.h>

#include <string>

#include "brigade/comm/communicator.h"

namespace brigade {

// int64 on the CPU; alike on all ranks that launch the same collective.
torch::Tensor signature_of(const CollectiveRecord& record);

// all: [R, n], the signatures by rank. Throws CommError that lists them where
// one differs from `mine`.
void check_signatures(
    const torch::Tensor& all,
    const torch::Tensor& mine,
    const std::string& group);

}  // namespace brigade
