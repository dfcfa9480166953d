// What the library's structs take from a run's config where they are not
// members of it and take libtorch: options of communication, gradient
// synchronisation and optimizers (run/run_options.h has the others). Pure, but
// for hooks that allocate.
#pragma once

#include <torch/types.h>

#include "brigade/comm/backend.h"
#include "brigade/comm/communicator.h"
#include "brigade/config/train_config.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/hook_memory.h"
#include "brigade/model/from_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/options/optimizer.h"
#include "brigade/param/step_rule.h"

namespace brigade {

CommunicatorOptions communicator_options(const DistributedConfig& distributed);

// What the groups run over.
Backend backend_of(const DistributedConfig& distributed);

// What distributed.zero_stage says.
Sharding sharding_of(const DistributedConfig& distributed);

// What reduces a bucket as distributed.grad_wire says. A hook of its own at
// each call, because some keep errors from step to step: in `memory`.
BucketHook wire_hook(const TrainConfig& config, HookMemoryPtr memory);

// Sums of gradients as main_grad; finish() waits for them. The hook is empty.
GradSyncOptions grad_sync_options(const TrainConfig& config);

// How a parameter is stepped: with training.weight_decay where weight_decay_on
// says so, without elsewhere, and at the rate of its class.
StepRule step_rule_of(const ParameterRow& row, const TrainingConfig& training);
// The run's optimizer.
OptimizerOptions optimizer_options(const TrainConfig& config);

// The exchange of fragments in low-communication training (DiLoCo).
OuterFragmentOptions outer_fragment_options(const TrainConfig& config);

}  // namespace brigade
