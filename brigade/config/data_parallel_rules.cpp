#include "brigade/config/data_parallel_rules.h"

#include <fmt/format.h>

#include "brigade/schedule/fragment_schedule.h"

namespace brigade {

namespace {

using Problems = std::vector<std::string>;

bool is_default_of_outer(const DistributedConfig& distributed) {
  const DistributedConfig none;
  return distributed.local_groups == none.local_groups &&
         distributed.local_warmup_steps == none.local_warmup_steps &&
         distributed.local_warmup_interval == none.local_warmup_interval &&
         distributed.outer_learning_rate == none.outer_learning_rate &&
         distributed.outer_momentum == none.outer_momentum &&
         distributed.outer_wire == none.outer_wire &&
         distributed.outer_fragments == none.outer_fragments &&
         distributed.outer_delay == none.outer_delay &&
         distributed.outer_alpha == none.outer_alpha;
}

void check_local_steps(
    const DistributedConfig& distributed,
    Problems& problems) {
  if (distributed.local_steps == 0) {
    if (!is_default_of_outer(distributed))
      problems.emplace_back(
          "[config] /distributed/local_groups, local_warmup_* and outer_* "
          "have no meaning with /distributed/local_steps = 0; set local_steps, "
          "or leave them out");
    return;
  }
  if (distributed.zero_stage > 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_steps = {} with /distributed/zero_stage = "
        "{}: the groups' optimizers differ, so that there is nothing to divide "
        "between them; set zero_stage to 0",
        distributed.local_steps,
        distributed.zero_stage));
  if (distributed.local_warmup_steps > 0 &&
      distributed.local_warmup_interval == 1 &&
      distributed.grad_sync != GradSyncKind::kBucketed)
    problems.push_back(fmt::format(
        "[config] /distributed/local_warmup_steps = {} with "
        "/distributed/grad_sync = \"{}\", which reduces over the ranks of one "
        "group alone; set grad_sync to \"bucketed\", or local_warmup_interval "
        "above 1",
        distributed.local_warmup_steps,
        to_string(distributed.grad_sync)));
  if (distributed.local_warmup_interval > 1 &&
      distributed.local_warmup_steps == 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_warmup_interval = {} has no meaning with "
        "/distributed/local_warmup_steps = 0; set local_warmup_steps, or leave "
        "it out",
        distributed.local_warmup_interval));
  if (distributed.local_groups > 0 &&
      distributed.dp_size % distributed.local_groups != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_groups = {} does not divide dp_size = {}",
        distributed.local_groups,
        distributed.dp_size));
  validate_fragment_schedule(
      {.local_steps = distributed.local_steps,
       .fragments = distributed.outer_fragments,
       .delay = distributed.outer_delay,
       .warmup_steps = distributed.local_warmup_steps,
       .warmup_interval = distributed.local_warmup_interval},
      problems);
}

void check_grad_wire(const DistributedConfig& distributed, Problems& problems) {
  if (distributed.grad_wire != GradWire::kPowerSgd &&
      distributed.powersgd_rank != DistributedConfig{}.powersgd_rank)
    problems.push_back(fmt::format(
        "[config] /distributed/powersgd_rank = {} has no meaning with "
        "/distributed/grad_wire = \"{}\"; set grad_wire to \"powersgd\", or "
        "leave it out",
        distributed.powersgd_rank,
        to_string(distributed.grad_wire)));
  const bool keeps_errors = distributed.grad_wire == GradWire::kInt8 ||
                            distributed.grad_wire == GradWire::kPowerSgd;
  if (keeps_errors && distributed.zero_stage > 0)
    problems.push_back(fmt::format(
        "[config] /distributed/grad_wire = \"{}\" with "
        "/distributed/zero_stage = {}: gradients are reduced whole, not in the "
        "ranges that ranks own; set zero_stage to 0, or grad_wire to \"bf16\"",
        to_string(distributed.grad_wire),
        distributed.zero_stage));
  if (distributed.grad_wire == GradWire::kFp32 ||
      distributed.grad_sync == GradSyncKind::kBucketed)
    return;
  problems.push_back(fmt::format(
      "[config] /distributed/grad_wire = \"{}\" with /distributed/grad_sync = "
      "\"{}\", which sends gradients as they are; set grad_sync to "
      "\"bucketed\"",
      to_string(distributed.grad_wire),
      to_string(distributed.grad_sync)));
}

void check_zero_stage(
    const DistributedConfig& distributed,
    Problems& problems) {
  if (distributed.zero_stage == 0)
    return;
  const auto refuse = [&](const char* key, const char* value, const char* why) {
    problems.push_back(fmt::format(
        "[config] /distributed/zero_stage = {} with /distributed/{} = \"{}\": "
        "{}",
        distributed.zero_stage,
        key,
        value,
        why));
  };
  if (distributed.grad_sync != GradSyncKind::kBucketed)
    refuse(
        "grad_sync",
        to_string(distributed.grad_sync),
        "only buckets are divided between ranks; set it to \"bucketed\"");
  if (distributed.bucket_order == BucketOrder::kObserved)
    refuse(
        "bucket_order",
        to_string(distributed.bucket_order),
        "what a rank owns must not change after the first step; set it to "
        "\"reverse\"");
  if (distributed.zero_stage > 1 &&
      distributed.pp_engine == ScheduleKind::kZeroBubble)
    refuse(
        "pp_engine",
        to_string(distributed.pp_engine),
        "its weight gradients come after a micro-batch's backward, when its "
        "buckets were sent; use zero_stage 1 or another schedule");
  if (distributed.zero_stage > 2 && distributed.pp_size > 1)
    problems.push_back(fmt::format(
        "[config] /distributed/zero_stage = {} with /distributed/pp_size = {}: "
        "every micro-batch of a pipeline would gather a stage's weights anew, "
        "twice; set zero_stage to 2, or pp_size to 1",
        distributed.zero_stage,
        distributed.pp_size));
}

void check_gradient_check(const TrainConfig& config, Problems& problems) {
  const int64_t every = config.training.check_gradients_every;
  if (every == 0)
    return;
  if (config.distributed.grad_sync == GradSyncKind::kPerParam)
    problems.push_back(fmt::format(
        "[config] /training/check_gradients_every = {} with "
        "/distributed/grad_sync = per_param: it compares buckets; set "
        "grad_sync to bucketed",
        every));
  if (config.trains_on_gpus())
    problems.push_back(fmt::format(
        "[config] /training/check_gradients_every = {} on GPUs, whose sums "
        "need not come out with the same bits twice; set it to 0",
        every));
}

}  // namespace

void check_data_parallel(const TrainConfig& config, Problems& problems) {
  check_grad_wire(config.distributed, problems);
  check_zero_stage(config.distributed, problems);
  check_local_steps(config.distributed, problems);
  check_gradient_check(config, problems);
  if (config.distributed.zero_stage > 2 &&
      config.training.check_replicas_every > 0)
    problems.push_back(fmt::format(
        "[config] /training/check_replicas_every = {} with "
        "/distributed/zero_stage = {}, where no two ranks of dp x cp hold the "
        "same; set check_replicas_every to 0, or zero_stage to 2",
        config.training.check_replicas_every,
        config.distributed.zero_stage));
}

}  // namespace brigade
