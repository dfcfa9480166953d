// Rewrites a checkpoint of any version in the current format.
#pragma once

#include <filesystem>

namespace brigade {

// Writes the checkpoint at `path` (what Checkpoint takes) to `out` in the
// current format: whole tensors, in one file for weights and one for the
// optimizer, with the same manifest and attachments. Verifies it first. The
// whole checkpoint passes through memory. Throws DataError when it is not
// valid, ConfigError when `out` exists, StorageError when it cannot be written.
void convert_checkpoint(
    const std::filesystem::path& path,
    const std::filesystem::path& out);

}  // namespace brigade
