// The datasets of a config.
#pragma once

#include "brigade/config/train_config.h"
#include "brigade/data/training_data.h"

namespace brigade {

// Throws what open_training_data() throws.
TrainingData open_training_data_of(const TrainConfig& config);

}  // namespace brigade
