// What the keys of gradient synchronisation, ZeRO and low-communication
// training ask of one another: private to train_config.
#pragma once

#include <string>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

// Adds one message for each combination that cannot be honoured. dp_size is
// filled in.
void check_data_parallel(
    const TrainConfig& config,
    std::vector<std::string>& problems);

}  // namespace brigade
