// What a run will need, from its config alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "brigade/config/train_config.h"

namespace brigade::cli {

// How many tokens a teacher's file names of each place; before it is made those
// that `evaluate --top-k` names without --k. Throws DataError for a file that
// is none.
int64_t teacher_tokens_of(const std::filesystem::path& teacher);

// One line: what the head keeps and computes for a loss other than
// cross-entropy; "" with that. The config's model is known.
std::string describe_head(const TrainConfig& config);

// One line: the memory of the rank that needs the most, part by part, as
// `brigade plan` counts it; then describe_head(). The config's model is known.
std::string describe_memory(const TrainConfig& config);

}  // namespace brigade::cli
