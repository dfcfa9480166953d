// The optimizer that options name.
#pragma once

#include <memory>
#include <vector>

#include "brigade/optim/optimizer.h"
#include "brigade/options/optimizer.h"

namespace brigade {

std::unique_ptr<Optimizer> make_optimizer(
    const OptimizerOptions& options,
    std::vector<OptimizerGroup> groups);

}  // namespace brigade
