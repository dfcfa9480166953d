// Flat memory cut into the groups that an optimizer steps: neighbours of one
// parameter group form one.
#pragma once

#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

// Of a parameter that is not stepped.
inline constexpr int kNoGroup = -1;

// `sync` hands over main_grad (GradHandover::kMainGrad). group_of: by parameter
// of `sync`; rules: by parameter group. Together the groups cover what
// this rank owns of the parameters that are stepped, padding behind them
// included. Valid until sync.layout_version() changes.
std::vector<OptimizerGroup> make_optimizer_groups(
    const GradSync& sync,
    const std::vector<int>& group_of,
    const std::vector<StepRule>& rules);

}  // namespace brigade
