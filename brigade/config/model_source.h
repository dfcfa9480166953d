// Where the model of a config comes from: private to train_config.
#pragma once

#include <string>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

// Fills config.model.decoder from model.config or from the file that model.name
// leads to; stays empty for an id that `find_model` does not know.
void find_decoder_config(
    const FindModel& find_model,
    TrainConfig& config,
    std::vector<std::string>& problems);

}  // namespace brigade
