#include <fmt/format.h>
#include <fmt/ranges.h>

#include "brigade/config/group_keys.h"

namespace brigade {

namespace {

using enum Resume;
using Keys = std::vector<ConfigKey>;
using G = DistributedConfig;

// Keys of config.distributed, or of a struct in it that the members lead to.
template <class... Members>
auto distributed_keys(Keys& keys, Members... members) {
  return group_keys(keys, "distributed", &TrainConfig::distributed, members...);
}

void add_grid(Keys& keys) {
  const auto dims = distributed_keys(keys, &G::dims);
  const auto group = distributed_keys(keys);
  std::vector<std::string> others;
  for (const Axis axis : kNamedAxes) {
    if (axis != Axis::kDp)
      others.emplace_back(to_string(axis));
  }
  // The fastest first.
  for (auto axis = kAxes.rbegin(); axis != kAxes.rend(); ++axis) {
    ConfigKey& key = dims.key(
        size_key_of(*axis),
        size_member(*axis),
        at_least(1),
        kFree,
        fmt::format("ranks of {}", meaning_of(*axis)));
    if (*axis == Axis::kDp)
      key.default_note =
          fmt::format("world size / ({})", fmt::join(others, " * "));
  }
  dims.key(
      "ep_size",
      &ParallelDims::ep,
      at_least(1),
      kFree,
      fmt::format(
          "neighbouring ranks of {} among which experts are divided",
          names_of(kReplicaAxes)));
  group.key("pp_engine", &G::pp_engine, kAny, kFree, "pipeline schedule");
  group
      .key(
          "backend",
          &G::backend,
          {.absent = ""},
          kFree,
          "collectives: gloo on CPUs, nccl on GPUs, mpi under mpirun")
      .default_note = "what use_cpu implies";
  group.key("use_cpu", &G::use_cpu, kAny, kFree, "train on CPUs").default_note =
      "whether there is no GPU to use";
}

void add_gradient_sums(Keys& keys) {
  const auto group = distributed_keys(keys);
  const auto powersgd = distributed_keys(keys, &G::powersgd);
  group.key(
      "grad_sync",
      &G::grad_sync,
      kAny,
      kFree,
      "buckets overlapped with backward, or one all-reduce per parameter");
  group.key(
      "grad_wire",
      &G::grad_wire,
      kAny,
      kFree,
      "gradients between ranks: fp32; rounded to 16 bits; int8 or powersgd "
      "(low rank), whose errors are sent in the next step");
  powersgd
      .key(
          "powersgd_rank",
          &PowerSgdOptions::rank,
          at_least(1),
          kFree,
          "rank of the matrices that grad_wire=powersgd sends")
      .only_with = {"grad_wire", {to_string(GradWire::kPowerSgd)}};
  group.key(
      "hierarchical_reduction",
      &G::hierarchical_reduction,
      kAny,
      kFree,
      "gradients are summed inside each host before they cross hosts; auto: "
      "where hosts have several ranks of " +
          names_of(kReplicaAxes));
  group.key(
      "bucket_cap_mb",
      &G::bucket_cap_mb,
      {.low = 0, .low_is_excluded = true},
      kFree,
      "largest bucket in MiB of gradient");
  group.key(
      "bucket_order",
      &G::bucket_order,
      kAny,
      kFree,
      "order of the parameters in the buckets");
  group.key(
      "zero_stage",
      &G::zero_stage,
      {.low = 0, .high = 3},
      kFree,
      names_of(kReplicaAxes) +
          " ranks divide: 1 the optimizer's state, 2 gradients too, 3 weights "
          "too");
}

void add_local_training(Keys& keys) {
  const auto group = distributed_keys(keys);
  const auto rounds = distributed_keys(keys, &G::rounds);
  using Rounds = FragmentSchedule;
  rounds.key(
      "local_steps",
      &Rounds::local_steps,
      at_least(0),
      kTrajectory,
      "steps that each group of dp ranks trains by itself before the groups "
      "exchange what they learned (DiLoCo); 0: data parallel in every step");
  group.key(
      "local_groups",
      &G::local_groups,
      at_least(0),
      kFree,
      "groups of neighbouring dp ranks; 0: each dp rank is one");
  rounds.key(
      "local_warmup_steps",
      &Rounds::warmup_steps,
      at_least(0),
      kTrajectory,
      "steps of warm-up before the first round; data parallel over all groups, "
      "unless local_warmup_interval says otherwise");
  rounds.key(
      "local_warmup_interval",
      &Rounds::warmup_interval,
      at_least(1),
      kTrajectory,
      "1: the warm-up is data parallel; more: groups train apart in it too, "
      "and take their mean every so many steps, in outer_wire");
}

void add_outer_step(Keys& keys) {
  const auto rounds = distributed_keys(keys, &G::rounds);
  const auto outer = distributed_keys(keys, &G::outer);
  const auto optimizer =
      distributed_keys(keys, &G::outer, &OuterFragmentOptions::optimizer);
  using Rounds = FragmentSchedule;
  using Outer = OuterFragmentOptions;
  optimizer.key(
      "outer_learning_rate",
      &OuterOptimizerOptions::lr,
      {.low = 0, .low_is_excluded = true},
      kTrajectory,
      "rate of the outer Nesterov SGD, which steps with the mean change of the "
      "groups");
  optimizer.key(
      "outer_momentum",
      &OuterOptimizerOptions::momentum,
      {.low = 0, .high = 1, .high_is_excluded = true},
      kTrajectory,
      "momentum of the outer Nesterov SGD");
  outer.key(
      "outer_wire",
      &Outer::wire,
      kAny,
      kTrajectory,
      "changes between groups; what fewer bits lose is sent the next time");
  outer.key(
      "outer_norm_limit",
      &Outer::norm_limit,
      at_least(0),
      kTrajectory,
      "a group whose change is not finite, or has a norm above so many times "
      "the median of the other groups', is left out of the round; 0: whatever "
      "is finite takes part");
  rounds.key(
      "outer_fragments",
      &Rounds::fragments,
      at_least(1),
      kTrajectory,
      "parts of the model that are exchanged at different steps");
  rounds.key(
      "outer_delay",
      &Rounds::delay,
      at_least(0),
      kTrajectory,
      "steps that a group trains on while a fragment is under way");
  outer.key(
      "outer_alpha",
      &Outer::alpha,
      {.low = 0, .high = 1, .high_is_excluded = true},
      kTrajectory,
      "share of its own weights that a group keeps when it takes the common "
      "ones");
}

}  // namespace

void add_distributed(std::vector<ConfigKey>& keys) {
  add_grid(keys);
  add_gradient_sums(keys);
  add_local_training(keys);
  add_outer_step(keys);
  const auto group = distributed_keys(keys);
  group.key(
      "sequence_parallel",
      &G::sequence_parallel,
      kAny,
      kFree,
      "norms and residuals on T/tp tokens");
  group.key(
      "pp_virtual_stages",
      &G::pp_virtual_stages,
      at_least(1),
      kFree,
      "stages of each pipeline rank (interleaved_1f1b)");
  group
      .key(
          "pp_layers",
          &G::pp_layers,
          at_least(0),
          kFree,
          "layers of each stage")
      .default_note = "cut by cost";
  group.key(
      "check_collectives",
      &G::check_collectives,
      kAny,
      kFree,
      "compare every collective's signature across its ranks first");
  group.key(
      "timeout_seconds",
      &G::timeout_seconds,
      {.low = 1, .high = 1e6},
      kFree,
      "how long a collective may take");
}

}  // namespace brigade
