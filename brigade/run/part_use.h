// What each part of dataset.mixture gives to a run: for `inspect` and
// --dry-run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/data/training_data.h"

namespace brigade {

struct PartUse {
  std::string path;
  uint64_t windows = 0;  // of one epoch
  uint64_t seen = 0;     // windows so far
  uint64_t in_all = 0;   // when the run has ended
};

// What a run has used that has trained on so many samples in so many steps;
// empty where the data has no parts.
std::vector<PartUse> count_part_use(
    const TrainConfig& config,
    const TrainingData& data,
    int64_t steps,
    int64_t samples);

// "data/web: 1,000 windows seen (0.10 epochs), 5,000 in the whole run (0.50)".
std::string describe(const PartUse& use);

}  // namespace brigade
