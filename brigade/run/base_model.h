// An adapter's run: its options, and its base model, a folder beside the
// checkpoint, which has the adapter alone.
#pragma once

#include <filesystem>
#include <string>

#include "brigade/options/adapter.h"
#include "brigade/run/manifest.h"

namespace brigade {

// What tells the weights in a folder from others: the sizes of the safetensors
// files that they are loaded from, and digests of their ends. Throws DataError.
std::string fingerprint_of_weights(const std::filesystem::path& folder);

// Throws DataError where the base model of the run in `checkpoint` is missing,
// or has other weights than the adapter was trained beside. Checkpoints from
// before the fingerprint was kept pass.
void check_base_model(
    const CheckpointManifest& manifest,
    const std::filesystem::path& checkpoint);

// The adapter of a run that saved this checkpoint. Throws DataError where its
// config has none.
AdapterOptions adapter_of_run(const CheckpointManifest& manifest);

}  // namespace brigade
