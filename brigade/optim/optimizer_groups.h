// This rank's part of the flat weights (GradHandover::kMainGrad), cut into the
// groups that an optimizer steps: neighbours of one parameter group form one.
#pragma once

#include <torch/types.h>

#include <optional>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

// The parameter group of a parameter that is not stepped.
inline constexpr int kNoGroup = -1;

// group_of: by parameter of `sync`; rules: by parameter group. Together the
// groups cover what this rank owns of the parameters that are stepped, and the
// padding behind them; a range of padding alone belongs to parameter group 0. A
// group is named "bucket 3", or "bucket 3 [0:128]" if it is a part of one.
// Valid until sync.memory().layout_version() changes.
std::vector<OptimizerGroup> make_optimizer_groups(
    const GradSync& sync,
    const std::vector<int>& group_of,
    const std::vector<StepRule>& rules);

// The parameters that have elements in a tensor that an optimizer steps, in the
// order of memory. The tensor is a parameter, or a view of the flat weights
// that this rank owns. Empty if it is padding; std::nullopt if it is elsewhere.
std::optional<std::vector<RunPart>> parts_of(
    const GradSync& sync,
    const torch::Tensor& stepped);

}  // namespace brigade
