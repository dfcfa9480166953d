#include "brigade/train/local_checkpoint.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/train/stored_parts.h"

namespace brigade {
namespace {

std::string group_prefix(int group) {
  return fmt::format("outer.{}.", group);
}

// Before the moments of a group.
std::string moment_prefix(int group) {
  return group == 0 ? "" : group_prefix(group);
}

// The optimizer's states but for the master, which goes with the weight.
std::vector<ParamState::State> moments_of(const ParamState& state) {
  std::vector<ParamState::State> moments;
  for (const ParamState::State& kept : state.states) {
    if (kept.name != kMasterState)
      moments.push_back(kept);
  }
  return moments;
}

// How many groups the checkpoint has; 0: it is data parallel's.
int groups_in(const Checkpoint& checkpoint, const std::string& name) {
  int groups = 0;
  while (checkpoint.contains(group_prefix(groups) + "weight." + name))
    ++groups;
  return groups;
}

}  // namespace

void read_mean_moments(const Checkpoint& checkpoint, const ParamState& state) {
  const int groups = groups_in(checkpoint, state.name);
  if (groups < 2)
    return;
  const torch::NoGradGuard no_grad;
  for (const auto& [kind, tensor] : moments_of(state)) {
    torch::Tensor moment = tensor;
    auto sum = torch::zeros_like(moment);
    for (int group = 0; group < groups; ++group) {
      checkpoint.read(
          part_of(moment_prefix(group) + kind + ".", state, moment));
      sum.add_(moment);
    }
    moment.copy_(sum.div_(groups));
  }
}

void add_local_parts(
    LocalTraining& local,
    const ProcessMesh& mesh,
    CheckpointToSave& checkpoint) {
  Shares shares(*mesh.replicas());
  const int group = mesh.replica_group();
  const std::string own = group_prefix(group);
  const std::string moments = moment_prefix(group);
  auto& optimizer = checkpoint.optimizer;
  local.visit([&](const GroupParam& param) {
    const ParamState& state = param.state;
    if (!is_stored_here(state))
      return;
    std::vector<TensorPart> parts{master_part_of(own + "weight.", state)};
    for (const auto& [kind, tensor] : moments_of(state))
      parts.push_back(part_of(moments + kind + ".", state, tensor));
    for (TensorPart& part : parts) {
      if (shares.take(part))
        optimizer.push_back(std::move(part));
    }
    if (!param.outer)
      return;
    if (param.outer->errors.defined())
      optimizer.push_back(part_of(own + "errors.", state, param.outer->errors));
    if (group != 0)
      return;
    const torch::Tensor& common = param.outer->common;
    checkpoint.weights.push_back(
        part_of("", state, common.to(state.weight.scalar_type())));
    if (state.master_low().defined())
      optimizer.push_back(part_of("master.", state, common));
    optimizer.push_back(
        part_of("outer.momentum.", state, param.outer->momentum));
    if (param.is_under_way)
      optimizer.push_back(
          part_of("outer.pending.", state, param.outer->pending));
  });
}

bool load_local(
    const Checkpoint& checkpoint,
    int64_t step,
    LocalTraining& local) {
  local.restart();
  bool has_all = true;
  bool has_pending = true;
  local.visit([&](const GroupParam& param) {
    const ParamState& state = param.state;
    const auto read = [&](const std::string& prefix, torch::Tensor into) {
      if (into.defined() && checkpoint.contains(prefix + state.name))
        checkpoint.read(part_of(prefix, state, into));
    };
    if (param.outer)
      read("outer.momentum.", param.outer->momentum);
    if (groups_in(checkpoint, state.name) != local.groups()) {
      read_mean_moments(checkpoint, state);
      has_all = false;
      return;
    }
    const std::string own = group_prefix(local.group());
    checkpoint.read(master_part_of(own + "weight.", state));
    for (const auto& [kind, tensor] : moments_of(state))
      read(own + kind + ".", tensor);
    if (local.will_be_under_way(state, step))
      has_pending =
          has_pending && checkpoint.contains("outer.pending." + state.name);
    if (!param.outer)
      return;
    read(own + "errors.", param.outer->errors);
    read("outer.pending.", param.outer->pending);
  });
  if (has_all && has_pending)
    local.resume_under_way(step);
  return has_all;
}

}  // namespace brigade
