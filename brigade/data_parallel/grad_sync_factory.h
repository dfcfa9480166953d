// Which GradSync a module gets.
#pragma once

#include <memory>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/options/grad_sync_algorithm.h"

namespace brigade {

// Collective; throws what the constructors throw.
std::unique_ptr<GradSync> make_grad_sync(
    GradSyncAlgorithm kind,
    std::vector<Param> params,
    CommunicatorPtr communicator,
    const GradSyncOptions& options);

}  // namespace brigade
