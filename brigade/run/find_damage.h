// Whether a checkpoint's files are those that its manifest lists.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "brigade/options/verify_level.h"
#include "brigade/run/manifest.h"

namespace brigade {

// Bytes hashed so far, of all that are to be.
using HashProgress =
    std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

// What is wrong with the files that the manifest lists, one message per file,
// each naming the file; empty: nothing. Looks at the files of which the index
// modulo `parts` is `part`. Empty for a version 1, of which nothing is known.
std::vector<std::string> find_damage(
    const std::filesystem::path& directory,
    const CheckpointManifest& manifest,
    VerifyLevel level,
    int part = 0,
    int parts = 1,
    const HashProgress& on_progress = {});

}  // namespace brigade
