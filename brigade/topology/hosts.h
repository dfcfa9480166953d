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

}  // namespace brigade
