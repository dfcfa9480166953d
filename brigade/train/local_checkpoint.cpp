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
std::vector<State> moments_of(const Param& param) {
  std::vector<State> moments;
  for (const State& kept : param.states) {
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

void read_mean_moments(const Checkpoint& checkpoint, const Param& param) {
  const int groups = groups_in(checkpoint, param.name);
  if (groups < 2)
    return;
  const torch::NoGradGuard no_grad;
  for (const auto& [kind, tensor] : moments_of(param)) {
    torch::Tensor moment = tensor;
    auto sum = torch::zeros_like(moment);
    for (int group = 0; group < groups; ++group) {
      checkpoint.read(
          part_of(moment_prefix(group) + kind + ".", param, moment));
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
  local.visit([&](const GroupParam& of_group) {
    const Param& param = of_group.param;
    if (!param.is_counted_here())
      return;
    std::vector<TensorPart> parts{master_part_of(own + "weight.", param)};
    for (const auto& [kind, tensor] : moments_of(param))
      parts.push_back(part_of(moments + kind + ".", param, tensor));
    for (TensorPart& part : parts) {
      if (shares.take(part))
        optimizer.push_back(std::move(part));
    }
    if (!of_group.outer)
      return;
    if (of_group.outer->errors.defined())
      optimizer.push_back(
          part_of(own + "errors.", param, of_group.outer->errors));
    if (group != 0)
      return;
    const torch::Tensor& common = of_group.outer->common;
    checkpoint.weights.push_back(
        part_of("", param, common.to(param.tensor.scalar_type())));
    if (param.state(kMasterState).defined())
      optimizer.push_back(part_of("master.", param, common));
    optimizer.push_back(
        part_of("outer.momentum.", param, of_group.outer->momentum));
    if (of_group.is_under_way)
      optimizer.push_back(
          part_of("outer.pending.", param, of_group.outer->pending));
  });
}

bool load_local(
    const Checkpoint& checkpoint,
    int64_t step,
    LocalTraining& local) {
  local.restart();
  bool has_all = true;
  bool has_pending = true;
  local.visit([&](const GroupParam& of_group) {
    const Param& param = of_group.param;
    const auto read = [&](const std::string& prefix, torch::Tensor into) {
      if (into.defined() && checkpoint.contains(prefix + param.name))
        checkpoint.read(part_of(prefix, param, into));
    };
    if (of_group.outer)
      read("outer.momentum.", of_group.outer->momentum);
    if (groups_in(checkpoint, param.name) != local.groups()) {
      read_mean_moments(checkpoint, param);
      has_all = false;
      return;
    }
    const std::string own = group_prefix(local.group());
    checkpoint.read(master_part_of(own + "weight.", param));
    for (const auto& [kind, tensor] : moments_of(param))
      read(own + kind + ".", tensor);
    if (local.will_be_under_way(param, step))
      has_pending =
          has_pending && checkpoint.contains("outer.pending." + param.name);
    if (!of_group.outer)
      return;
    read(own + "errors.", of_group.outer->errors);
    read("outer.pending.", of_group.outer->pending);
  });
  if (has_all && has_pending)
    local.resume_under_way(step);
  return has_all;
}

}  // namespace brigade
