// Directories that take a name as a whole.
#pragma once

#include <filesystem>

namespace brigade {

// Gives `source`, a directory whose files are synced, the name `target` and
// syncs the parent. Where a directory `target` exists the two change names in
// one step (renameat2), so that at every instant `target` is one of them, and
// the old one is removed afterwards. A file system that cannot do this first
// moves `target` to `target`.old: after a kill in between it is there under
// that name, and finish_replacing() brings it back.
// Throws StorageError; `target` is then what it was before.
void replace_directory(
    const std::filesystem::path& source,
    const std::filesystem::path& target);

// Ends what a kill interrupted: `target`.old becomes `target` again where that
// is missing, and is removed where it is there. Throws StorageError.
void finish_replacing(const std::filesystem::path& target);

}  // namespace brigade
