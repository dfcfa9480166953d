#include "brigade/config/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/config/keys.h"
#include "brigade/options/optimizer_states.h"
#include "brigade/schedule/fragment_schedule.h"

namespace brigade {

namespace {

using Problems = std::vector<std::string>;

bool is_default_of_outer(const DistributedConfig& distributed) {
  const DistributedConfig none;
  return distributed.local_groups == none.local_groups &&
         distributed.rounds == none.rounds && distributed.outer == none.outer;
}

void check_local_steps(
    const DistributedConfig& distributed,
    Problems& problems) {
  if (distributed.rounds.local_steps == 0) {
    if (!is_default_of_outer(distributed))
      problems.emplace_back(
          "[config] /distributed/local_groups, local_warmup_* and outer_* "
          "have no meaning with /distributed/local_steps = 0; set local_steps, "
          "or leave them out");
    return;
  }
  const double limit = distributed.outer.norm_limit;
  if (limit > 0 && limit < 1)
    problems.push_back(fmt::format(
        "[config] /distributed/outer_norm_limit = {} would leave out groups "
        "that are as good as the others; set it to 0 or to 1 at least",
        limit));
  if (distributed.zero_stage > 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_steps = {} with /distributed/zero_stage = "
        "{}: the groups' optimizers differ, so that there is nothing to divide "
        "between them; set zero_stage to 0",
        distributed.rounds.local_steps,
        distributed.zero_stage));
  if (distributed.rounds.warmup_steps > 0 &&
      distributed.rounds.warmup_interval == 1 &&
      distributed.grad_sync != GradSyncAlgorithm::kBucketed)
    problems.push_back(fmt::format(
        "[config] /distributed/local_warmup_steps = {} with "
        "/distributed/grad_sync = \"{}\", which reduces over the ranks of one "
        "group alone; set grad_sync to \"bucketed\", or local_warmup_interval "
        "above 1",
        distributed.rounds.warmup_steps,
        to_string(distributed.grad_sync)));
  if (distributed.rounds.warmup_interval > 1 &&
      distributed.rounds.warmup_steps == 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_warmup_interval = {} has no meaning with "
        "/distributed/local_warmup_steps = 0; set local_warmup_steps, or leave "
        "it out",
        distributed.rounds.warmup_interval));
  if (distributed.local_groups > 0 &&
      distributed.dims.dp % distributed.local_groups != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_groups = {} does not divide dp_size = {}",
        distributed.local_groups,
        distributed.dims.dp));
  validate_fragment_schedule(distributed.rounds, problems);
}

// Keys that mean something beside one choice of another key alone.
void check_conditions(const TrainConfig& config, Problems& problems) {
  const TrainConfig defaults;
  for (const ConfigKey& key : config_keys()) {
    const ConfigKey::Condition& needed = key.only_with;
    if (needed.name.empty() || key.get(config) == key.get(defaults))
      continue;
    const nlohmann::json other =
        find_config_key(key.group, needed.name)->get(config);
    if (needed.values.empty()) {
      if (other.is_null())
        problems.push_back(fmt::format(
            "[config] {} = {} has no meaning without /{}/{}; leave it out",
            key.pointer(),
            key.get(config).dump(),
            key.group,
            needed.name));
      continue;
    }
    const bool has_meaning = std::ranges::any_of(
        needed.values,
        [&](const std::string& value) { return other == value; });
    if (!has_meaning)
      problems.push_back(fmt::format(
          "[config] {} = {} has no meaning with /{}/{} = {}; set {} to \"{}\", "
          "or leave it out",
          key.pointer(),
          key.get(config).dump(),
          key.group,
          needed.name,
          other.dump(),
          needed.name,
          fmt::join(needed.values, "\" or \"")));
  }
}

void check_grad_wire(const DistributedConfig& distributed, Problems& problems) {
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
      distributed.grad_sync == GradSyncAlgorithm::kBucketed)
    return;
  problems.push_back(fmt::format(
      "[config] /distributed/grad_wire = \"{}\" with /distributed/grad_sync = "
      "\"{}\", which sends gradients as they are; set grad_sync to "
      "\"bucketed\"",
      to_string(distributed.grad_wire),
      to_string(distributed.grad_sync)));
}

// Rounded on the host, where the memory of a GPU cannot be read.
void check_wires_of_gpus(const TrainConfig& config, Problems& problems) {
  if (!config.trains_on_gpus())
    return;
  const DistributedConfig& distributed = config.distributed;
  if (distributed.grad_wire == GradWire::kInt8 ||
      distributed.grad_wire == GradWire::kPowerSgd)
    problems.push_back(fmt::format(
        "[config] /distributed/grad_wire = \"{}\" on GPUs, whose gradients it "
        "does not compress; set it to \"bf16\"",
        to_string(distributed.grad_wire)));
  if (distributed.rounds.local_steps > 0 &&
      distributed.outer.wire != WireFormat::kFp32)
    problems.push_back(fmt::format(
        "[config] /distributed/outer_wire = \"{}\" on GPUs, whose weights it "
        "does not round; set it to \"fp32\"",
        to_string(distributed.outer.wire)));
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
  if (distributed.grad_sync != GradSyncAlgorithm::kBucketed)
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
  if (distributed.zero_stage > 2 && distributed.dims.pp > 1)
    problems.push_back(fmt::format(
        "[config] /distributed/zero_stage = {} with /distributed/pp_size = {}: "
        "every micro-batch of a pipeline would gather a stage's weights again, "
        "twice; set zero_stage to 2, or pp_size to 1",
        distributed.zero_stage,
        distributed.dims.pp));
}

void check_gradient_check(const TrainConfig& config, Problems& problems) {
  const int64_t every = config.training.check_gradients_every;
  if (every == 0)
    return;
  if (config.distributed.grad_sync == GradSyncAlgorithm::kPerParam)
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

void check_optimizer(const TrainConfig& config, Problems& problems) {
  const TrainingConfig& training = config.training;
  const SgdOptions& sgd = training.optimizer.sgd;
  if (sgd.nesterov && sgd.momentum == 0)
    problems.emplace_back(
        "[config] /training/sgd_nesterov = true without momentum: set "
        "/training/sgd_momentum");
  if (const std::string problem =
          why_not_kept_in(training.optimizer.moments, training.optimizer);
      !problem.empty())
    problems.push_back(fmt::format(
        "[config] /training/optimizer_state_dtype: {}; set it to \"float32\"",
        problem));
  if (training.mup.is_used() && training.mup.base_hidden_size == 0)
    problems.emplace_back(
        "[config] /training/parametrization = \"mup\" without "
        "/training/mup_base_hidden_size; set it to the hidden_size at which "
        "the learning rate was found");
  if (training.mup.is_used() && training.optimizer.kind == OptimizerKind::kSgd)
    problems.emplace_back(
        "[config] /training/parametrization = \"mup\" with /training/optimizer "
        "= \"sgd\": its rules are those of updates whose size does not depend "
        "on the gradient's; set optimizer to \"adamw\", \"muon\" or "
        "\"schedule_free_adamw\"");
  if (training.optimizer.muon.learning_rate && training.lr.peak == 0)
    problems.emplace_back(
        "[config] /training/muon_learning_rate follows learning_rate's "
        "schedule, but /training/learning_rate is 0; set it above 0");
  if (training.optimizer.averages_weights() &&
      config.distributed.rounds.local_steps > 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_steps = {} with /training/{}: what groups "
        "exchange would not be the average of the weights; {}",
        config.distributed.rounds.local_steps,
        training.optimizer.ema_decay > 0
            ? "ema_decay"
            : "optimizer = \"schedule_free_adamw\"",
        training.optimizer.ema_decay > 0
            ? "set ema_decay to 0"
            : "set optimizer to \"adamw\" or \"muon\""));
  if (training.optimizer.kind != OptimizerKind::kScheduleFreeAdamW)
    return;
  if (training.optimizer.ema_decay > 0)
    problems.push_back(fmt::format(
        "[config] /training/ema_decay = {} with /training/optimizer = "
        "\"schedule_free_adamw\", which averages weights itself; set ema_decay "
        "to 0",
        training.optimizer.ema_decay));
  if (training.lr.decay != LrDecay::kConstant)
    problems.push_back(fmt::format(
        "[config] /training/lr_schedule = \"{}\" with /training/optimizer = "
        "\"schedule_free_adamw\", whose average of the weights is there "
        "instead of a rate that falls; set lr_schedule to \"constant\"",
        to_string(training.lr.decay)));
  if (training.optimizer.adamw.beta1 == 0)
    problems.emplace_back(
        "[config] /training/adam_beta1 = 0 with /training/optimizer = "
        "\"schedule_free_adamw\", whose average it then does not say; set it "
        "above 0");
}

}  // namespace

void check_data_parallel(const TrainConfig& config, Problems& problems) {
  check_conditions(config, problems);
  check_grad_wire(config.distributed, problems);
  check_wires_of_gpus(config, problems);
  check_zero_stage(config.distributed, problems);
  check_local_steps(config.distributed, problems);
  check_gradient_check(config, problems);
  check_optimizer(config, problems);
  if (config.distributed.zero_stage > 2 &&
      config.training.check_replicas_every > 0)
    problems.push_back(fmt::format(
        "[config] /training/check_replicas_every = {} with "
        "/distributed/zero_stage = {}, where no two ranks of {} hold the "
        "same; set check_replicas_every to 0, or zero_stage to 2",
        config.training.check_replicas_every,
        config.distributed.zero_stage,
        names_of(kReplicaAxes)));
}

}  // namespace brigade
