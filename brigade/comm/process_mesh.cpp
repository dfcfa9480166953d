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
  using enum Connection;
  const auto add = [this](
                       const std::string& name,
                       Connection connection,
                       const Colour& colour) {
    named_[name] = split(name, connection, colour);
  };
  // The order is the same on every rank, so that no rank waits for a peer that
  // waits in another group.
  add("world", kAlongAxes, along_axes({kAxes.begin(), kAxes.end()}));
  add("dp_cp", kByHost, along_axes(kReplicaAxes));
  for (const Axis axis : kAxes)
    add(to_string(axis), kFull, along_axes({axis}));
  add("sequence", kFull, along_axes(kSequenceAxes));
  add("model", kAlongAxes, along_axes(kModelAxes));
  add("embedding", kFull, [&](Coordinate at) {
    // The two ends of a pipeline form one group.
    if (at.pp == dims.pp - 1)
      at.pp = 0;
    return at.values();
  });
  add("ep", kFull, dims.expert_parallel());
  // If all replicas hold all experts: dp_cp() itself, which may sum by host.
  named_["all_expert_replicas"] =
      dims.ep == 1 ? dp_cp()
                   : split("expert_replicas", kFull, dims.expert_replicas());
  named_["expert_replicas"] = all_expert_replicas();
  named_["replicas"] = dp_cp();
  named_["between_groups"] = make_self_communicator({.name = "between_groups"});
}

CommunicatorPtr ProcessMesh::split(
    const std::string& name,
    Connection connection,
    const Colour& colour) const {
  CommunicatorOptions group = options_of(name, dims_.members(colour, rank_));
  if (connection == Connection::kAlongAxes)
    return join_along_axes(group);
  if (connection == Connection::kByHost)
    return join_by_host(group);
  if (connection == Connection::kFull)
    return join(group);
  group.name += fmt::format(" {}", apart_.size());
  return apart_.emplace_back(make_group(group));
}

CommunicatorPtr ProcessMesh::join(const CommunicatorOptions& group) const {
  const auto known = full_.find(group.members);
  return known != full_.end()
             ? known->second
             : full_.emplace(group.members, make_group(group)).first->second;
}

CommunicatorPtr ProcessMesh::join_along_axes(
    const CommunicatorOptions& group) const {
  const Coordinate first = dims_.coordinate(group.members.front());
  const Coordinate last = dims_.coordinate(group.members.back());
  std::vector<Axis> axes;
  for (const Axis axis : kAxes) {
    if (first[axis] != last[axis])
      axes.push_back(axis);
  }
  if (axes.size() < 2 || group.members.size() <= kFullyConnectedRanks ||
      group.members != dims_.members(along_axes(axes), rank_))
    return join(group);
  if (const auto known = grids_.find(group.members); known != grids_.end())
    return known->second;
  if (!grid_worker_)
    grid_worker_ = std::make_shared<SequentialWorker>();
  std::vector<CommunicatorPtr> along;
  for (const Axis axis : axes) {
    CommunicatorPtr& of_axis = grid_axes_[axis];
    if (!of_axis)
      of_axis = make_group(options_of(
          fmt::format("world along {}", to_string(axis)),
          dims_.members(along_axes({axis}), rank_)));
    along.push_back(of_axis);
  }
  return grids_
      .emplace(group.members, make_grid_group(along, grid_worker_, group))
      .first->second;
}

CommunicatorOptions ProcessMesh::options_of(
    const std::string& name,
    std::vector<int> members) const {
  CommunicatorOptions options = options_;
  options.name = name;
  options.members = std::move(members);
  options.member_names.clear();
  for (const int member : options.members)
    options.member_names.push_back(
        options_.member_names.at(static_cast<size_t>(member)));
  return options;
}

CommunicatorPtr ProcessMesh::make_group(
    const CommunicatorOptions& group) const {
  const std::vector<int>& members = group.members;
  const auto here = std::find(members.begin(), members.end(), rank_);
  BRIGADE_ASSERT(
      here != members.end(), "rank {} outside '{}'", rank_, group.name);
  StorePtr store;
  if (members.size() > 1 && store_)
    store =
        store_->with_prefix(fmt::format("{}/{}", group.name, members.front()));
  return make_communicator(
      store,
      static_cast<int>(here - members.begin()),
      static_cast<int>(members.size()),
      group,
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
  named_["replicas"] =
      split("replicas", Connection::kByHost, [&](const Coordinate& at) {
        return at.part_colour({at.dp / dp_of_group});
      });
  named_["expert_replicas"] =
      dims_.ep == 1 ? replicas()
                    : split(
                          "group's expert_replicas",
                          Connection::kFull,
                          [&](const Coordinate& at) {
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
  named_["between_groups"] = make_group(options_of("between_groups", firsts));
}

CommunicatorPtr ProcessMesh::join_by_host(
    const CommunicatorOptions& group) const {
  const std::vector<int>& members = group.members;
  const auto known = grids_.find(members);
  const CommunicatorPtr whole =
      known != grids_.end() ? known->second : join(group);
  const HierarchyChoice choice = backend_.hierarchy;
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
    // A part of the replicas that is inside one host has nothing to gain,
    // whatever was asked for.
    if (choice == HierarchyChoice::kOn && replica_groups_ == 1)
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
  const std::string& host = hosts[static_cast<size_t>(whole->rank())];
  std::vector<int> inside;
  for (size_t i = 0; i < members.size(); ++i) {
    if (hosts[i] == host)
      inside.push_back(members[i]);
  }
  const auto place = static_cast<size_t>(
      std::find(inside.begin(), inside.end(), rank_) - inside.begin());
  std::vector<int> across;
  for (const std::vector<int>& ranks : grid->ranks)
    across.push_back(members[static_cast<size_t>(ranks[place])]);
  const HierarchicalGroups groups{
      .whole = whole,
      .inside = make_group(
          options_of(fmt::format("{} on {}", group.name, host), inside)),
      .across = make_group(options_of(group.name + " across hosts", across))};
  by_host_.insert(by_host_.end(), {groups.inside, groups.across});
  return make_hierarchical_communicator(groups, *grid);
}

std::vector<CommunicatorPtr> ProcessMesh::all() const {
  std::vector<CommunicatorPtr> result;
  auto by_members = grids_;
  auto full_besides = full_;
  by_members.merge(full_besides);  // leaves those of the same members
  for (const auto* groups : {&by_members, &full_besides}) {
    for (const auto& [members, communicator] : *groups)
      result.push_back(communicator);
  }
  if (between_groups()->size() > 1)
    result.push_back(between_groups());
  result.insert(result.end(), apart_.begin(), apart_.end());
  result.insert(result.end(), by_host_.begin(), by_host_.end());
  for (const auto& [axis, communicator] : grid_axes_)
    result.push_back(communicator);
  return result;
}

}  // namespace brigade
