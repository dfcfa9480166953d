#include "brigade/train/local_checkpoint.h"

#include <fmt/format.h>

#include <utility>

#include "brigade/checkpoint/param_parts.h"

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
    if (kept.name != kMasterLow && !kept.name.starts_with("outer."))
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
  for (const State& moment : moments_of(param)) {
    const std::string kind = moment.name + ".";
    if (!checkpoint.contains(moment_prefix(0) + kind + param.name))
      continue;
    const auto each = torch::empty_like(moment.tensor, torch::kFloat);
    auto sum = torch::zeros_like(each);
    for (int group = 0; group < groups; ++group) {
      checkpoint.read(part_of(moment_prefix(group) + kind, param, each));
      sum.add_(each);
    }
    set_values(moment, sum.div_(groups));
  }
}

void add_local_parts(
    LocalTraining& local,
    const ProcessMesh& mesh,
    CheckpointToSave& checkpoint) {
  Shares of_replicas(*mesh.replicas());
  Shares of_experts(*mesh.expert_replicas());
  const int group = mesh.replica_group();
  const std::string own = group_prefix(group);
  const std::string moments = moment_prefix(group);
  auto& optimizer = checkpoint.optimizer;
  local.visit([&](const Param& param) {
    if (!param.is_counted_here())
      return;
    Shares& shares = param.row->expert == kNoExpert ? of_replicas : of_experts;
    std::vector<State> parts{master_part_of(own + "weight.", param)};
    for (const State& moment : moments_of(param))
      parts.push_back(part_of(moments + moment.name + ".", param, moment));
    for (State& part : parts) {
      if (shares.take(part))
        optimizer.push_back(std::move(part));
    }
    const auto add = [&](const std::string& prefix, const torch::Tensor& kept) {
      if (kept.defined())
        optimizer.push_back(part_of(prefix, param, kept));
    };
    add(own + "errors.", param.state(kOuterErrors));
    const torch::Tensor common = param.state(kOuterCommon);
    if (group != 0 || !common.defined())
      return;
    checkpoint.weights.push_back(
        part_of("", param, common.to(param.tensor.scalar_type())));
    if (param.state(kMasterLow).defined())
      add("master.", common);
    add("outer.momentum.", param.state(kOuterMomentum));
    if (local.is_under_way(param))
      add("outer.pending.", param.state(kOuterPending));
  });
}

bool load_local(
    const Checkpoint& checkpoint,
    int64_t step,
    LocalTraining& local) {
  local.restart();
  bool has_all = true;
  bool has_pending = true;
  local.visit([&](const Param& param) {
    const auto read = [&](const std::string& prefix, torch::Tensor into) {
      if (into.defined() && checkpoint.contains(prefix + param.name))
        checkpoint.read(part_of(prefix, param, into));
    };
    read("outer.momentum.", param.state(kOuterMomentum));
    if (groups_in(checkpoint, param.name) != local.groups()) {
      read_mean_moments(checkpoint, param);
      has_all = false;
      return;
    }
    const std::string own = group_prefix(local.group());
    checkpoint.read(master_part_of(own + "weight.", param));
    for (const State& moment : moments_of(param)) {
      const std::string prefix = own + moment.name + ".";
      if (checkpoint.contains(prefix + param.name))
        checkpoint.read(part_of(prefix, param, moment));
    }
    if (local.will_be_under_way(param, step))
      has_pending =
          has_pending && checkpoint.contains("outer.pending." + param.name);
    read(own + "errors.", param.state(kOuterErrors));
    read("outer.pending.", param.state(kOuterPending));
  });
  local.resume_under_way(step, has_all && has_pending);
  return has_all;
}

}  // namespace brigade
