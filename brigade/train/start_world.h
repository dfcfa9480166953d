// From the launch environment to a mesh of ranks that agree on the run.
#pragma once

#include <memory>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/launch/environment.h"

namespace brigade {

// Collective over all ranks, which meet at `store`, or where it is null at the
// one that the environment names. Throws ConfigError on every rank when their
// configs differ (compared by hash).
std::unique_ptr<ProcessMesh> start_world(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    StorePtr store = nullptr);

}  // namespace brigade
