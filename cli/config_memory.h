// What a run will need, from its config alone.
#pragma once

#include <string>

#include "brigade/config/train_config.h"

namespace brigade::cli {

// One line: the memory of the rank that needs the most, part by part, as
// `brigade plan` counts it. The config's model is known.
std::string describe_memory(const TrainConfig& config);

}  // namespace brigade::cli
