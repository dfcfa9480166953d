// Which layers each stage of a layout holds.
//
// PURE.
#pragma once

#include <vector>

#include "brigade/planner/training.h"
#include "brigade/topology/layer_partition.h"

namespace brigade::planner {

// One range per stage: Training::stage_layers where they are given, else cut by
// cost as `train` cuts them. Throws ConfigError for lists that do not fit.
std::vector<LayerRange> cut_stages(const Training& training, int stages);

// Parameters that a stage holds before tensor and expert parallel cut them.
struct StageParameters {
  int64_t everywhere = 0;
  int64_t of_experts = 0;  // that routers choose from
};
StageParameters stage_parameters(
    const ModelShape& shape,
    const std::vector<LayerRange>& cut,
    int stage);

}  // namespace brigade::planner
