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
}

CommunicatorPtr ProcessMesh::join(
    const std::string& name,
    std::vector<int> members) {
  if (const auto known = by_members_.find(members); known != by_members_.end())
    return known->second;
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
  CommunicatorPtr communicator = make_communicator(
      store,
      static_cast<int>(here - members.begin()),
      static_cast<int>(members.size()),
      std::move(options),
      backend_);
  by_members_.emplace(std::move(members), communicator);
  return communicator;
}

const CommunicatorPtr& ProcessMesh::axis(Axis axis) const {
  return axes_.at(axis);
}

std::vector<CommunicatorPtr> ProcessMesh::all() const {
  std::vector<CommunicatorPtr> result;
  for (const auto& [members, communicator] : by_members_)
    result.push_back(communicator);
  return result;
}

}  // namespace brigade
