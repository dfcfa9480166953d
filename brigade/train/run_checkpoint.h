// A run's stages to and from a checkpoint.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/train/stage_runtime.h"

namespace brigade {

struct RunPosition {
  int64_t steps = 0;
  int64_t tokens = 0;
};

// Collective over the world.
void save_run(
    const std::filesystem::path& directory,
    const TrainConfig& config,
    const ProcessMesh& mesh,
    const std::vector<std::unique_ptr<StageRuntime>>& stages,
    const RunPosition& position);

// Fills the stages from checkpoint.load_path, whatever layout wrote it. Throws
// DataError when it holds another model.
RunPosition load_run(
    const TrainConfig& config,
    const std::vector<std::unique_ptr<StageRuntime>>& stages);

}  // namespace brigade
