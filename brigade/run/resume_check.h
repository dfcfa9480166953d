// Whether a run may continue a checkpoint (resume_rules.h).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "brigade/config/train_config.h"
#include "brigade/data/training_data.h"
#include "brigade/run/manifest.h"
#include "brigade/run/run_observer.h"

namespace brigade {

// What generation will need: the tokenizer that was named, made the dataset or
// came with the model: a path, "bytes", or "".
std::string find_tokenizer(const TrainConfig& config);

// What the datasets of a run hold, for the manifest: tokens, and the
// tokenizer's SHA-256.
nlohmann::json describe_data(
    const TrainConfig& config,
    const TrainingData& data);

// training.lr_end of the run that wrote the checkpoint.
LrEnd saved_lr_end(const std::filesystem::path& checkpoint);

// Throws ConfigError with every key that differs from the checkpoint's and may
// not (resume_rules.h); reports those that may.
void check_resume(
    const std::filesystem::path& checkpoint,
    const TrainConfig& config,
    const TrainingData& data,
    RunObserver& observer);

// The same, in silence, for the checkpoint that checkpoint.load_path names; for
// "auto" the newest that looks whole. Returns its manifest; std::nullopt where
// there is none.
std::optional<CheckpointManifest> check_named_checkpoint(
    const TrainConfig& config,
    const TrainingData& data);

}  // namespace brigade
