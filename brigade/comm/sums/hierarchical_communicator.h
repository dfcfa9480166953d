// Hierarchical collectives over a group that spans hosts: the bytes that each
// rank sends over the slow links between hosts are divided by the ranks of a
// host.
//
//   all_reduce          reduce-scatter inside each host, all-reduce of each
//                       rank's shard across hosts, all-gather inside
//   all_reduce_as_bf16  the same, in bf16 across hosts alone
//   all_reduce_rows     rows inside each host, each rank's part of the matrix
//                       across, all-gather inside
//   reduce_scatter      inside, then across
//   all_gather          across, then inside
//
// Everything else goes over the whole group as it is. A thread of the
// communicator executes the steps, in the order of launches.
//
// Costs a rank between hosts, H hosts of L ranks, n bytes: all_reduce
// 2n(H-1)/(H L); inside a host 2n(L-1)/L; memory: n/L, and a copy of a tensor
// whose chunks are not in the hosts' order (reduce_scatter, all_gather).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// A group's ranks by host, equally many on each.
struct HostGrid {
  // The ranks of each host, ascending; hosts are ordered by their first rank.
  std::vector<std::vector<int>> ranks;
};

// The grid of a group whose i-th rank is on hosts[i]. std::nullopt if there is
// nothing to gain (one host, one rank per host) or the hosts have different
// numbers of ranks.
std::optional<HostGrid> find_host_grid(const std::vector<std::string>& hosts);

// The groups that the steps go over, all of the same backend and used by this
// communicator alone.
struct HierarchicalGroups {
  CommunicatorPtr whole;
  CommunicatorPtr inside;  // this host's ranks, in the order of HostGrid
  CommunicatorPtr across;  // one rank per host, in the order of HostGrid
};

// Makes the communicator of the whole group, with sums by host. Its ranks,
// names and options are those of `groups.whole`, but its operations are
// recorded by the groups they go over.
CommunicatorPtr make_hierarchical_communicator(
    HierarchicalGroups groups,
    const HostGrid& grid);

}  // namespace brigade
