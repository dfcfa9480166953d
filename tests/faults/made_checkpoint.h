// A small checkpoint of known values, for tests that damage it.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <string>

#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/save.h"
#include "brigade/run/checkpoint_folder.h"

namespace brigade::testing {

// The value of every element in the checkpoint of a step.
inline float value_of_step(int64_t step) {
  return 0.5F + static_cast<float>(step);
}

inline CheckpointToSave made_checkpoint(
    int64_t step,
    const std::string& run = "this run") {
  CheckpointToSave checkpoint;
  checkpoint.manifest.step = step;
  checkpoint.manifest.tokens = step * 100;
  checkpoint.manifest.samples = step * 4;
  checkpoint.manifest.run = run;
  checkpoint.manifest.dtype = "float32";
  checkpoint.manifest.config = {{"training", {{"seed", 7}}}};
  checkpoint.manifest.model = {{"hidden_size", 64}};
  const auto filled = torch::full({64, 48}, value_of_step(step));
  checkpoint.weights.push_back({.name = "model.a", .tensor = filled});
  checkpoint.weights.push_back({.name = "model.b", .tensor = filled.clone()});
  checkpoint.optimizer.push_back({.name = "exp_avg.model.a", .tensor = filled});
  return checkpoint;
}

inline void save_made(
    const std::filesystem::path& folder,
    int64_t step,
    const std::string& run = "this run") {
  CheckpointToSave checkpoint = made_checkpoint(step, run);
  checkpoint.after_commit = [folder, step] {
    note_latest(folder, step);
    return std::string();
  };
  save_checkpoint(
      folder / std::to_string(step), std::move(checkpoint), SaveRanks{});
}

// Whether every element has the value of `step`.
inline bool holds_values_of(
    const std::filesystem::path& directory,
    int64_t step) {
  const Checkpoint checkpoint(directory);
  for (const std::string& name : checkpoint.names()) {
    if (!checkpoint.read_whole(name).eq(value_of_step(step)).all().item<bool>())
      return false;
  }
  return checkpoint.names().size() == 3;
}

}  // namespace brigade::testing
