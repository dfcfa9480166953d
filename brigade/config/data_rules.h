// What losses of pairs and of a teacher ask of the dataset and the batch: private
// to train_config.
#pragma once

#include <string>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

// Adds one message for each combination that cannot be honoured.
void check_data(const TrainConfig& config, std::vector<std::string>& problems);

}  // namespace brigade
