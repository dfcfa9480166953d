#include "brigade/comm/process_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/comm/sums/grid_group.h"
#include "brigade/comm/sums/hierarchical_communicator.h"
#include "brigade/topology/hosts.h"

namespace brigade {
namespace {

// A group of several axes with more ranks than this is connected only along the
// axes. Smaller ones are connected fully: their collectives take fewer steps,
// and an error names the lost rank directly.
constexpr size_t kFullyConnectedRanks = 16;

}  // namespace

ProcessMesh::ProcessMesh(
    const ParallelDims& dims,
    int rank,
    const StorePtr& store,
    CommunicatorOptions options,
    BackendOptions backend)
    : dims_(dims),
      rank_(rank),
      coordinate_(dims.coordinate(rank)),
      store_(store),
      options_(std::move(options)),
      backend_(std::move(backend)) {
  if (options_.member_names.empty())
    options_.member_names = rank_names(dims);
  // The order is the same on every rank, so that no rank waits for a peer that
  // waits in another group.
  world_ = join_grid("world", {kAxes.begin(), kAxes.end()});
  dp_cp_ = join_by_host(
      "dp_cp", dims.members(kReplicaAxes, rank), backend_.hierarchy);
  for (const Axis axis : kAxes)
    axes_[axis] = join(to_string(axis), dims.members({axis}, rank));
  sequence_ = join("sequence", dims.members(kSequenceAxes, rank));
  model_ = join_grid("model", kModelAxes);
  embedding_ = split("embedding", [&](Coordinate at) {
    // The two ends of a pipeline form one group.
    if (at.pp == dims.pp - 1)
      at.pp = 0;
    return at.values();
  });
  expert_parallel_ = split("ep", dims.expert_parallel());
  // Not split() if all replicas hold them: dp_cp_ may sum by host.
  all_expert_replicas_ =
      dims.ep == 1 ? dp_cp_ : split("expert_replicas", dims.expert_replicas());
  expert_replicas_ = all_expert_replicas_;
  replicas_ = dp_cp_;
  between_groups_ = make_self_communicator({.name = "between_groups"});
}

CommunicatorPtr ProcessMesh::split(
    const std::string& name,
    const Colour& colour) const {
  std::vector<int> members = dims_.members(colour, rank_);
  if (!grids_.contains(members))
    return join(name, std::move(members));
  CommunicatorPtr& communicator = connected_[members];
  if (!communicator)
    communicator = make_group(name, members);
  return communicator;
}

CommunicatorPtr ProcessMesh::split_apart(
    const std::string& name,
    const Colour& colour) const {
  return apart_.emplace_back(make_group(
      fmt::format("{} {}", name, apart_.size()), dims_.members(colour, rank_)));
}

CommunicatorPtr ProcessMesh::join(
    const std::string& name,
    std::vector<int> members) const {
  if (const auto known = by_members_.find(members); known != by_members_.end())
    return known->second;
  CommunicatorPtr communicator = make_group(name, members);
  by_members_.emplace(std::move(members), communicator);
  return communicator;
}

CommunicatorPtr ProcessMesh::join_grid(
    const std::string& name,
    const std::vector<Axis>& axes) {
  std::vector<int> members = dims_.members(axes, rank_);
  std::vector<Axis> several;
  for (const Axis axis : axes) {
    if (dims_[axis] > 1)
      several.push_back(axis);
  }
  if (several.size() < 2 || members.size() <= kFullyConnectedRanks)
    return join(name, std::move(members));
  if (const auto known = by_members_.find(members); known != by_members_.end())
    return known->second;
  if (!grid_worker_)
    grid_worker_ = std::make_shared<SequentialWorker>();
  std::vector<CommunicatorPtr> along;
  for (const Axis axis : several) {
    CommunicatorPtr& group = grid_axes_[axis];
    if (!group)
      group = make_group(
          fmt::format("world along {}", to_string(axis)),
          dims_.members({axis}, rank_));
    along.push_back(group);
  }
  const auto communicator =
      make_grid_group(along, grid_worker_, options_of(name, members));
  grids_.insert(members);
  by_members_.emplace(std::move(members), communicator);
  return communicator;
}

CommunicatorOptions ProcessMesh::options_of(
    const std::string& name,
    const std::vector<int>& members) const {
  CommunicatorOptions options = options_;
  options.name = name;
  options.members = members;
  options.member_names.clear();
  for (const int member : members)
    options.member_names.push_back(
        options_.member_names.at(static_cast<size_t>(member)));
  return options;
}

CommunicatorPtr ProcessMesh::make_group(
    const std::string& name,
    const std::vector<int>& members) const {
  const auto here = std::find(members.begin(), members.end(), rank_);
  BRIGADE_ASSERT(here != members.end(), "rank {} outside '{}'", rank_, name);
  StorePtr store;
  if (members.size() > 1 && store_)
    store = store_->with_prefix(fmt::format("{}/{}", name, members.front()));
  return make_communicator(
      store,
      static_cast<int>(here - members.begin()),
      static_cast<int>(members.size()),
      options_of(name, members),
      backend_);
}

int ProcessMesh::replica_group() const {
  return coordinate_.dp / (dims_.dp / replica_groups_);
}

void ProcessMesh::divide_replicas(int groups) {
  BRIGADE_ASSERT(
      groups >= 1 && dims_.dp % groups == 0 &&
          dims_.replicas() / groups % dims_.ep == 0 && replica_groups_ == 1,
      "{} groups of dp {}, ep {}",
      groups,
      dims_.dp,
      dims_.ep);
  if (groups == 1)
    return;
  replica_groups_ = groups;
  const int dp_of_group = dims_.dp / groups;
  const int replicas_of_group = dims_.replicas() / groups;
  const std::vector<int> own = dims_.members(
      [&](const Coordinate& at) {
        return at.part_colour({at.dp / dp_of_group});
      },
      rank_);
  // A group inside one host has nothing to gain, whatever was asked for.
  replicas_ = join_by_host(
      "replicas",
      own,
      backend_.hierarchy == HierarchyChoice::kOff ? HierarchyChoice::kOff
                                                  : HierarchyChoice::kAuto);
  expert_replicas_ =
      dims_.ep == 1
          ? replicas_
          : split("group's expert_replicas", [&](const Coordinate& at) {
              return at.part_colour(
                  {dims_.expert_rank(at), at.dp / dp_of_group});
            });
  const std::vector<int> firsts = dims_.members(
      [&](const Coordinate& at) {
        const int replica = dims_.replica(at) % replicas_of_group;
        const bool is_first = replica < dims_.ep;
        return at.part_colour({is_first ? -1 - replica : dims_.rank(at)});
      },
      rank_);
  between_groups_ = make_group("between_groups", firsts);
}

CommunicatorPtr ProcessMesh::join_by_host(
    const std::string& name,
    const std::vector<int>& members,
    HierarchyChoice choice) {
  const CommunicatorPtr whole = join(name, members);
  // NCCL knows its own paths between hosts.
  const bool is_wanted =
      choice != HierarchyChoice::kOff && backend_.backend != Backend::kNccl;
  std::vector<std::string> hosts;
  for (const int member : members)
    hosts.push_back(
        backend_.hosts.empty()
            ? std::string()
            : backend_.hosts.at(static_cast<size_t>(member)));
  const auto grid = is_wanted ? find_host_grid(hosts) : std::nullopt;
  if (!grid) {
    if (choice == HierarchyChoice::kOn)
      throw ConfigError(fmt::format(
          "[config] /distributed/hierarchical_reduction = \"on\" needs the "
          "backend \"gloo\" or \"mpi\", and several hosts with several and as "
          "many ranks of {} each; those of {} are on {}",
          names_of(kReplicaAxes),
          options_.member_names.at(static_cast<size_t>(rank_)),
          backend_.hosts.empty() ? "one host"
                                 : fmt::format("{}", fmt::join(hosts, ", "))));
    return whole;
  }
  std::vector<int> inside;
  std::vector<int> across;
  std::string host;
  for (size_t i = 0; i < grid->ranks.size(); ++i) {
    const std::vector<int>& ranks = grid->ranks[i];
    const auto here = std::find(ranks.begin(), ranks.end(), whole->rank());
    if (here == ranks.end())
      continue;
    host = grid->names[i];
    for (const int rank : ranks)
      inside.push_back(members[static_cast<size_t>(rank)]);
    for (const auto& others : grid->ranks)
      across.push_back(members[static_cast<size_t>(
          others[static_cast<size_t>(here - ranks.begin())])]);
  }
  const HierarchicalGroups groups{
      .whole = whole,
      .inside = make_group(fmt::format("{} on {}", name, host), inside),
      .across = make_group(name + " across hosts", across)};
  by_host_.insert(by_host_.end(), {groups.inside, groups.across});
  return make_hierarchical_communicator(groups, *grid);
}

const CommunicatorPtr& ProcessMesh::axis(Axis axis) const {
  return axes_.at(axis);
}

std::vector<CommunicatorPtr> ProcessMesh::all() const {
  std::vector<CommunicatorPtr> result;
  for (const auto& [members, communicator] : by_members_)
    result.push_back(communicator);
  for (const auto& [members, communicator] : connected_)
    result.push_back(communicator);
  if (between_groups_->size() > 1)
    result.push_back(between_groups_);
  result.insert(result.end(), apart_.begin(), apart_.end());
  result.insert(result.end(), by_host_.begin(), by_host_.end());
  for (const auto& [axis, communicator] : grid_axes_)
    result.push_back(communicator);
  return result;
}

}  // namespace brigade
