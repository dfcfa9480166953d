#include "brigade/topology/hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "brigade/base/check.h"

namespace brigade {
namespace {

// How many of all groups of an axis have members on several hosts.
struct SplitGroups {
  int split = 0;
  int groups = 0;
};

SplitGroups count_split_groups(
    const ParallelDims& dims,
    Axis axis,
    const std::vector<std::string>& hosts) {
  SplitGroups count;
  for (const std::vector<int>& members : dims.groups({axis})) {
    std::set<std::string> seen;
    for (const int member : members)
      seen.insert(hosts[static_cast<size_t>(member)]);
    ++count.groups;
    count.split += seen.size() > 1 ? 1 : 0;
  }
  return count;
}

}  // namespace

std::vector<std::string> warn_of_split_groups(
    const ParallelDims& dims,
    const std::vector<std::string>& hosts) {
  BRIGADE_ASSERT(
      hosts.size() == static_cast<size_t>(dims.world_size()),
      "{} hosts of {} ranks",
      hosts.size(),
      dims.world_size());
  // The same ranks with those of a host side by side.
  std::vector<std::string> in_blocks = hosts;
  std::stable_sort(in_blocks.begin(), in_blocks.end());
  std::map<std::string, int> ranks_of_host;
  for (const std::string& host : hosts)
    ++ranks_of_host[host];
  int most = 0;
  for (const auto& [host, ranks] : ranks_of_host)
    most = std::max(most, ranks);

  std::vector<std::string> warnings;
  for (const Axis axis : kLayerAxes) {
    const SplitGroups now = count_split_groups(dims, axis, hosts);
    if (now.split == 0)
      continue;
    const bool blocks_help =
        count_split_groups(dims, axis, in_blocks).split == 0;
    warnings.push_back(fmt::format(
        "{} of {} {} groups have ranks on several hosts, whose network carries "
        "their collectives in every layer; {}",
        now.split,
        now.groups,
        to_string(axis),
        blocks_help
            ? std::string("number the ranks host by host: srun -m block, or "
                          "mpirun --map-by core")
            : fmt::format(
                  "choose axis sizes whose groups fit on one host ({} ranks at "
                  "most)",
                  most)));
  }
  return warnings;
}

std::vector<std::string> rank_names(
    const ParallelDims& dims,
    const std::vector<std::string>& hosts) {
  const std::set<std::string> distinct(hosts.begin(), hosts.end());
  std::vector<std::string> names;
  for (int rank = 0; rank < dims.world_size(); ++rank) {
    std::string name = fmt::format("rank {}", rank);
    if (const std::string place = dims.describe_coordinate(rank);
        !place.empty())
      name += fmt::format(" ({})", place);
    if (distinct.size() > 1)
      name += " on " + hosts.at(static_cast<size_t>(rank));
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace brigade
