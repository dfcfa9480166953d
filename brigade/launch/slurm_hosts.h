// Slurm's compressed lists: "node[03-05,9],gpu1" names node03, node04, node05,
// node9 and gpu1; "2(x3),1" means 2, 2, 2, 1.
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace brigade {

struct SlurmHosts {
  std::string first;   // "node03"
  uint64_t count = 0;  // 5
};

// Throws ConfigError with the list on anything that is not one.
SlurmHosts parse_slurm_hosts(std::string_view node_list);

// Tasks on the node_index-th node of SLURM_TASKS_PER_NODE. Throws ConfigError.
int slurm_tasks_of_node(std::string_view tasks_per_node, int node_index);

}  // namespace brigade
