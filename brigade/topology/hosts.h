// Where the ranks of a layout are: which groups cross from host to host.
#pragma once

#include <string>
#include <vector>

#include "brigade/topology/parallel_dims.h"

namespace brigade {

// One sentence per axis of tp and cp that has groups with members on several
// hosts, with what to change: the order of ranks where blocks of ranks per host
// would do, else the size of the axis. hosts: the host name of each rank.
std::vector<std::string> warn_of_split_groups(
    const ParallelDims& dims,
    const std::vector<std::string>& hosts);

// What messages call each rank: "rank 3 (dp 1, tp 1)", and with ranks on
// several hosts "rank 3 (dp 1, tp 1) on node2". hosts: as above, or empty.
std::vector<std::string> rank_names(
    const ParallelDims& dims,
    const std::vector<std::string>& hosts = {});

}  // namespace brigade
