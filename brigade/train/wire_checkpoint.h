// The state of error feedback in a checkpoint: what grad_wire = int8 and
// powersgd lost so far. Errors belong to each rank's own gradients, so that
// only a run of the same layout can take them over.
//
//   wire.R.errors.NAME   of rank R, shaped as on it
//   wire.R.factor.NAME   of powersgd: with which the next step begins
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/save.h"
#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/train/stage_runtime.h"

namespace brigade {

// Adds this rank's.
void add_wire_parts(
    int rank,
    const std::vector<std::unique_ptr<StageRuntime>>& stages,
    CheckpointToSave& checkpoint);

// Before the first step. Returns "", or why the run begins without what was
// lost before the checkpoint.
std::string load_wire_parts(
    const Checkpoint& checkpoint,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const std::vector<std::unique_ptr<StageRuntime>>& stages);

}  // namespace brigade
