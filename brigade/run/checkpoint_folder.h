// The folder of a run's checkpoints: FOLDER/<step>, with FOLDER/<step>.tmp of a
// save under way and FOLDER/latest, the step that was saved last.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace brigade {

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path directory;
};

// The folder of checkpoints of a run folder: that in it, or the one that
// checkpoint.save_dir of its config names; else the path itself.
std::filesystem::path folder_of_checkpoints(const std::filesystem::path& path);

// The checkpoint that `path` names: itself, or in a folder of checkpoints or of
// a run the one with the highest number. Throws DataError for a loop of links
// and where a manifest is no file.
std::optional<std::filesystem::path> find_checkpoint(
    const std::filesystem::path& path);
// The same. Throws DataError where it names none.
std::filesystem::path find_checkpoint_directory(
    const std::filesystem::path& path);

// FOLDER/<step>, ascending, whether they can be loaded or not; a name such as
// 007 is none. Empty where there is no such folder.
std::vector<CheckpointEntry> list_checkpoints(
    const std::filesystem::path& folder);

// Whether a checkpoint was ever completed in it, even if none is left.
bool has_held_checkpoints(const std::filesystem::path& folder);

// Notes in FOLDER/latest that `step` was saved. Throws StorageError.
void note_latest(const std::filesystem::path& folder, int64_t step);

// Removes what killed saves left (<step>.tmp and the like), and brings back
// what was being replaced. Returns a line about each. Only while nobody saves
// into the folder. Throws StorageError, but for what prune_checkpoints() could
// not remove either, which is no checkpoint any more.
std::vector<std::string> clean_up_saves(const std::filesystem::path& folder);

// Before a run continues the checkpoint that the user named, `step` of `run`:
// renames the checkpoints in the folder that are of later steps or of another
// run to STEP.set-aside[-K], which "auto" and the retention ignore. Returns
// their steps. `run` empty: steps of any run stay. Throws StorageError.
std::vector<int64_t> set_aside_other_checkpoints(
    const std::filesystem::path& folder,
    int64_t step,
    const std::string& run);

struct Retention {
  int64_t keep_last = 0;   // the newest; 0: all
  int64_t keep_every = 0;  // and all steps that it divides; 0: none
};

// The steps to remove, of `steps` in ascending order; never the last one. PURE.
std::vector<int64_t> steps_to_remove(
    const std::vector<int64_t>& steps,
    const Retention& retention);

// Removes what the retention does not keep, once `newest` was found valid
// otherwise: checkpoints above that step neither count nor go. Returns the
// removed steps. Throws StorageError that names those which could not be
// removed, once the others are.
std::vector<int64_t> prune_checkpoints(
    const std::filesystem::path& folder,
    const Retention& retention,
    int64_t newest);

}  // namespace brigade
