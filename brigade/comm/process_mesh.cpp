#include "brigade/comm/process_mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/topology/hosts.h"

namespace brigade {

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
  std::vector<int> everyone(static_cast<size_t>(dims.world_size()));
  std::iota(everyone.begin(), everyone.end(), 0);
  world_ = join("world", everyone);
  dp_cp_ = join("dp_cp", dims.dp_cp_members(rank));
  for (const Axis axis : kAxes)
    axes_[axis] = join(to_string(axis), dims.members(axis, rank));

  std::vector<int> model;
  for (const int other : everyone) {
    const Coordinate there = dims.coordinate(other);
    if (there.dp == coordinate_.dp && there.cp == coordinate_.cp)
      model.push_back(other);
  }
  model_ = join("model", model);

  const std::vector<int> stages = dims.members(Axis::kPp, rank);
  std::vector<int> embedding{rank};
  if (stages.size() > 1 && (rank == stages.front() || rank == stages.back()))
    embedding = {stages.front(), stages.back()};
  embedding_ = join("embedding", embedding);
  replicas_ = dp_cp_;
  between_groups_ = make_self_communicator({.name = "between_groups"});
}

CommunicatorPtr ProcessMesh::join(
    const std::string& name,
    std::vector<int> members) {
  if (const auto known = by_members_.find(members); known != by_members_.end())
    return known->second;
  const CommunicatorPtr communicator = connect(name, members);
  by_members_.emplace(std::move(members), communicator);
  return communicator;
}

CommunicatorPtr ProcessMesh::connect(
    const std::string& name,
    const std::vector<int>& members) {
  const auto here = std::find(members.begin(), members.end(), rank_);
  BRIGADE_ASSERT(here != members.end(), "rank {} outside '{}'", rank_, name);
  CommunicatorOptions options = options_;
  options.name = name;
  options.members = members;
  options.member_names.clear();
  for (const int member : members)
    options.member_names.push_back(
        options_.member_names.at(static_cast<size_t>(member)));
  StorePtr store;
  if (members.size() > 1 && store_)
    store = store_->with_prefix(fmt::format("{}/{}", name, members.front()));
  return make_communicator(
      store,
      static_cast<int>(here - members.begin()),
      static_cast<int>(members.size()),
      std::move(options),
      backend_);
}

int ProcessMesh::replica_group() const {
  return coordinate_.dp / (dims_.dp / replica_groups_);
}

void ProcessMesh::divide_replicas(int groups) {
  BRIGADE_ASSERT(
      groups >= 1 && dims_.dp % groups == 0 && replica_groups_ == 1,
      "{} groups of dp {}",
      groups,
      dims_.dp);
  replica_groups_ = groups;
  const int dp_of_group = dims_.dp / groups;
  std::vector<int> own;
  for (const int member : dims_.dp_cp_members(rank_)) {
    if (dims_.coordinate(member).dp / dp_of_group == replica_group())
      own.push_back(member);
  }
  replicas_ = join("replicas", own);
  std::vector<int> firsts{rank_};
  if (rank_ == own.front()) {
    firsts.clear();
    for (const int member : dims_.members(Axis::kDp, rank_)) {
      if (dims_.coordinate(member).dp % dp_of_group == 0)
        firsts.push_back(member);
    }
  }
  between_groups_ = connect("between_groups", firsts);
}

const CommunicatorPtr& ProcessMesh::axis(Axis axis) const {
  return axes_.at(axis);
}

std::vector<CommunicatorPtr> ProcessMesh::all() const {
  std::vector<CommunicatorPtr> result;
  for (const auto& [members, communicator] : by_members_)
    result.push_back(communicator);
  if (between_groups_->size() > 1)
    result.push_back(between_groups_);
  return result;
}

}  // namespace brigade
