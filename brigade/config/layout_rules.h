// Whether a config's layout is possible: private to train_config.
#pragma once

#include <string>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

// Fills dp_size in where it is not given, then checks the whole layout.
void lay_out(
    int world_size,
    TrainConfig& config,
    std::vector<std::string>& problems);

}  // namespace brigade
