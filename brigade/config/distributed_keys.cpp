#include "brigade/config/group_keys.h"

namespace brigade {

namespace {

using DistributedKeys = GroupKeys<DistributedConfig>;

void add_grid(DistributedKeys& group) {
  using G = DistributedConfig;
  const ValueRule size = at_least(1);
  group.key("tp_size", &G::tp_size, size, "ranks of tensor parallel");
  group.key("cp_size", &G::cp_size, size, "ranks of context parallel");
  group.key("pp_size", &G::pp_size, size, "ranks of pipeline parallel");
  group.key("dp_size", &G::dp_size, size, "ranks of data parallel")
      .default_note = "world size / (tp * pp * cp)";
  group.key("pp_engine", &G::pp_engine, kAny, "pipeline schedule");
  group
      .key(
          "backend",
          &G::backend,
          kAny,
          "collectives: gloo on CPUs, nccl on GPUs, mpi under mpirun")
      .default_note = "what use_cpu implies";
  group.key("use_cpu", &G::use_cpu, kAny, "train on CPUs").default_note =
      "whether there is no GPU to use";
}

void add_gradient_sums(DistributedKeys& group) {
  using G = DistributedConfig;
  group.key(
      "grad_sync",
      &G::grad_sync,
      kAny,
      "buckets overlapped with backward, or one all-reduce per parameter");
  group.key(
      "grad_wire",
      &G::grad_wire,
      kAny,
      "gradients between ranks: fp32; rounded to 16 bits; int8 or powersgd "
      "(low rank), whose errors are sent in the next step");
  group.key(
      "powersgd_rank",
      &G::powersgd_rank,
      at_least(1),
      "rank of the matrices that grad_wire=powersgd sends");
  group.key(
      "hierarchical_reduction",
      &G::hierarchical_reduction,
      kAny,
      "gradients are summed inside each host before they cross hosts; auto: "
      "where hosts have several ranks of dp x cp");
  group.key(
      "bucket_cap_mb",
      &G::bucket_cap_mb,
      {.low = 0, .low_is_excluded = true},
      "largest bucket in MiB of gradient");
  group.key(
      "bucket_order",
      &G::bucket_order,
      kAny,
      "order of the parameters in the buckets");
  group.key(
      "zero_stage",
      &G::zero_stage,
      {.low = 0, .high = 3},
      "dp x cp ranks divide: 1 the optimizer's state, 2 gradients too, 3 "
      "weights too");
}

void add_local_training(DistributedKeys& group) {
  using G = DistributedConfig;
  group.key(
      "local_steps",
      &G::local_steps,
      at_least(0),
      "steps that each group of dp ranks trains by itself before the groups "
      "exchange what they learned (DiLoCo); 0: data parallel in every step");
  group.key(
      "local_groups",
      &G::local_groups,
      at_least(0),
      "groups of neighbouring dp ranks; 0: each dp rank is one");
  group.key(
      "local_warmup_steps",
      &G::local_warmup_steps,
      at_least(0),
      "steps of warm-up before the first round; data parallel over all groups, "
      "unless local_warmup_interval says otherwise");
  group.key(
      "local_warmup_interval",
      &G::local_warmup_interval,
      at_least(1),
      "1: the warm-up is data parallel; more: groups train apart in it too, "
      "and take their mean every so many steps, in outer_wire");
  group.key(
      "outer_learning_rate",
      &G::outer_learning_rate,
      {.low = 0, .low_is_excluded = true},
      "rate of the outer Nesterov SGD, which steps with the mean change of the "
      "groups");
  group.key(
      "outer_momentum",
      &G::outer_momentum,
      {.low = 0, .high = 1, .high_is_excluded = true},
      "momentum of the outer Nesterov SGD");
  group.key(
      "outer_wire",
      &G::outer_wire,
      kAny,
      "changes between groups; what fewer bits lose is sent the next time");
  group.key(
      "outer_fragments",
      &G::outer_fragments,
      at_least(1),
      "parts of the model that are exchanged at different steps");
  group.key(
      "outer_delay",
      &G::outer_delay,
      at_least(0),
      "steps that a group trains on while a fragment is under way");
  group.key(
      "outer_alpha",
      &G::outer_alpha,
      {.low = 0, .high = 1, .high_is_excluded = true},
      "share of its own weights that a group keeps when it takes the common "
      "ones");
}

}  // namespace

void add_distributed(std::vector<ConfigKey>& keys) {
  using G = DistributedConfig;
  DistributedKeys group(keys, "distributed", &TrainConfig::distributed);
  add_grid(group);
  add_gradient_sums(group);
  add_local_training(group);
  group.key(
      "sequence_parallel",
      &G::sequence_parallel,
      kAny,
      "norms and residuals on T/tp tokens");
  group.key(
      "pp_virtual_stages",
      &G::pp_virtual_stages,
      at_least(1),
      "stages of each pipeline rank (interleaved_1f1b)");
  group.key("pp_layers", &G::pp_layers, at_least(0), "layers of each stage")
      .default_note = "cut by cost";
  group.key(
      "check_collectives",
      &G::check_collectives,
      kAny,
      "compare every collective's signature across its ranks first");
  group.key(
      "timeout_seconds",
      &G::timeout_seconds,
      {.low = 1, .high = 1e6},
      "how long a collective may take");
}

}  // namespace brigade
