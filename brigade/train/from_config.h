// What the library's structs take from a run's config where they are not
// members of it: options of data, communication and gradient synchronisation,
// and what is known from several keys. Pure, but for hooks that allocate.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "brigade/comm/backend.h"
#include "brigade/comm/communicator.h"
#include "brigade/config/train_config.h"
#include "brigade/data/loader.h"
#include "brigade/data/training_data.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/hook_memory.h"
#include "brigade/model/from_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/options/optimizer.h"
#include "brigade/options/optimizer_states.h"
#include "brigade/param/step_rule.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

CommunicatorOptions communicator_options(const DistributedConfig& distributed);

// What the groups run over.
Backend backend_of(const DistributedConfig& distributed);

// What distributed.zero_stage says.
Sharding sharding_of(const DistributedConfig& distributed);

// What reduces a bucket as distributed.grad_wire says. A hook of its own at
// each call, because some keep errors from step to step: in `memory`.
BucketHook wire_hook(const TrainConfig& config, HookMemoryPtr memory = nullptr);

// distributed.bucket_cap_mb in bytes of gradient.
int64_t bucket_capacity_bytes(const DistributedConfig& distributed);

// Sums of gradients, handed over as main_grad; finish() waits for them.
GradSyncOptions grad_sync_options(const TrainConfig& config);

// The plan that BucketedGradSync makes of grad_sync_options(), for --dry-run.
BucketPlanOptions bucket_plan_options(const TrainConfig& config);

// How a parameter is stepped: with training.weight_decay where weight_decay_on
// says so, without elsewhere, and at the rate of its class.
StepRule step_rule_of(const ParameterRow& row, const TrainingConfig& training);
// The run's optimizer.
OptimizerOptions optimizer_options(const TrainConfig& config);
WeightWidth weight_width(const TrainConfig& config);  // of model.dtype

// The exchange of fragments in low-communication training (DiLoCo).
OuterFragmentOptions outer_fragment_options(const TrainConfig& config);

// `last_step`: of the run (last_step()).
LrScheduleOptions lr_schedule_options(
    const TrainingConfig& training,
    int64_t last_step);
// The schedule of a run that has done so many steps and seen so many tokens.
LrScheduleOptions
lr_schedule_options(const TrainConfig& config, int64_t steps, int64_t tokens);

// Throws ConfigError when the config's model is not on this machine.
TrainingDataOptions training_data_options(
    const TrainConfig& config,
    TokenScanOptions scan = {});
// What dataset.name or the parts of dataset.mixture name, and dataset.teacher.
std::vector<std::string> data_names(const TrainConfig& config);
LoaderOptions loader_options(const TrainConfig& config, int dp_rank);

}  // namespace brigade
