// Whether a checkpoint is what was written.
#pragma once

#include <filesystem>
#include <string>

#include "brigade/comm/communicator.h"
#include "brigade/options/verify_level.h"
#include "brigade/run/find_damage.h"

namespace brigade {

// Why `directory` cannot be loaded; empty: it can. Reads the manifest and
// verifies all files.
std::string find_reason_to_reject(
    const std::filesystem::path& directory,
    VerifyLevel level,
    const HashProgress& on_progress = {});

// The same, collective over `world`: each rank verifies its share of the files,
// which must be the same on all ranks, and all return the same text.
// `on_progress` is of this rank's share.
std::string find_reason_to_reject(
    const std::filesystem::path& directory,
    VerifyLevel level,
    Communicator& world,
    const HashProgress& on_progress = {});

}  // namespace brigade
