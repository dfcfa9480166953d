// This rank's part of the flat weights (GradHandover::kMainGrad), cut into the
// groups that an optimizer steps: neighbours of one parameter group form one.
#pragma once

#include <torch/types.h>

#include <optional>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"

namespace brigade {

// Of a parameter that is not stepped.
inline constexpr int kNoGroup = -1;

// group_of: by parameter of `sync`; rules: by parameter group. Together the
// groups cover what this rank owns of the parameters that are stepped, padding
// behind them included; a range of padding alone belongs to parameter group 0.
// "bucket 3", or of a part of one "bucket 3 [0:128]". Valid until
// sync.layout_version() changes.
std::vector<OptimizerGroup> make_optimizer_groups(
    const GradSync& sync,
    const std::vector<int>& group_of,
    const std::vector<StepRule>& rules);

// The indices of an optimizer's groups, by segment of `sync`; those of other
// memory are left out.
std::vector<std::vector<size_t>> groups_by_segment(
    const GradSync& sync,
    const Optimizer& optimizer);

// The parameters of which a tensor that an optimizer steps has elements, in the
// order of memory: it is a parameter, or a view of the flat weights that this
// rank owns. Empty: it is padding; std::nullopt: it is elsewhere.
std::optional<std::vector<RunPart>> parts_of(
    const GradSync& sync,
    const torch::Tensor& stepped);

}  // namespace brigade
