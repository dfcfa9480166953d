#include "brigade/run/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/files/file.h"
#include "brigade/files/replace_directory.h"
#include "brigade/files/usual_path.h"
#include "brigade/json/parse.h"
#include "brigade/run/manifest.h"
#include "brigade/safetensors/folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatestFile = "latest";
constexpr const char* kRemovedSuffix = ".removed.tmp";

// Not "007", which no save writes.
std::optional<int64_t> step_of(const std::string& name) {
  const auto step = parse_number<int64_t>(name);
  const bool is_step = step && *step >= 0 && name == std::to_string(*step);
  return is_step ? step : std::nullopt;
}

// "12.tmp" without ".tmp"; std::nullopt: another name.
std::optional<std::string> without_suffix(
    const std::string& name,
    std::string_view suffix) {
  if (!name.ends_with(suffix))
    return std::nullopt;
  std::string rest = name.substr(0, name.size() - suffix.size());
  return step_of(rest) ? std::optional(rest) : std::nullopt;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

void remove_or_throw(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) {
    throw StorageError(fmt::format(
        "[checkpoint] cannot remove '{}': {}", path.string(), error.message()));
  }
}

// checkpoint.save_dir of the run whose folder this is; empty: it has none, or
// this is another folder.
fs::path saved_elsewhere(const fs::path& run) {
  const fs::path file = run / "config.json";
  if (!has_file(file))
    return {};
  const auto config = parse_json_or_nothing(read_text_file(file));
  const nlohmann::json::json_pointer key("/checkpoint/save_dir");
  if (!config || !config->contains(key) || !config->at(key).is_string())
    return {};
  return config->at(key).get<std::string>();
}

}  // namespace

fs::path folder_of_checkpoints(const fs::path& path) {
  const fs::path inside = path / "checkpoints";
  refuse_loop(inside);
  std::error_code ignored;
  if (fs::is_directory(inside, ignored))
    return inside;
  const fs::path elsewhere = saved_elsewhere(path);
  return fs::is_directory(elsewhere, ignored) ? elsewhere : path;
}

std::optional<fs::path> find_checkpoint(const fs::path& path) {
  if (has_file(path / kManifestFile))
    return path;
  const fs::path folder = folder_of_checkpoints(path);
  if (has_file(folder / kManifestFile))
    return folder;
  auto entries = list_checkpoints(folder);
  for (; !entries.empty(); entries.pop_back()) {
    if (has_file(entries.back().directory / kManifestFile))
      return entries.back().directory;
  }
  return std::nullopt;
}

fs::path find_checkpoint_directory(const fs::path& path) {
  if (const auto found = find_checkpoint(path))
    return *found;
  const fs::path folder = folder_of_checkpoints(path);
  throw DataError(fmt::format(
      "[checkpoint] '{}' is no checkpoint: it holds neither {} nor a "
      "numbered folder with one{}",
      folder.string(),
      kManifestFile,
      explain_missing_weights(folder)));
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& folder) {
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : names_in(folder)) {
    if (const auto step = step_of(name))
      entries.push_back({*step, folder / name});
  }
  std::ranges::sort(entries, {}, &CheckpointEntry::step);
  return entries;
}

bool has_held_checkpoints(const fs::path& folder) {
  return fs::exists(folder / kLatestFile) || !list_checkpoints(folder).empty();
}

void note_latest(const fs::path& folder, int64_t step) {
  write_text_file(folder / kLatestFile, fmt::format("{}\n", step));
}

std::vector<std::string> clean_up_saves(const fs::path& folder) {
  std::vector<std::string> lines;
  for (const std::string& name : names_in(folder)) {
    if (const auto step = without_suffix(name, ".old"))
      finish_replacing(folder / *step);
    const bool is_left_over =
        without_suffix(name, ".tmp") || without_suffix(name, kRemovedSuffix) ||
        name.starts_with(std::string(kLatestFile) + ".tmp-");
    if (!is_left_over)
      continue;
    try {
      remove_or_throw(folder / name);
      lines.push_back(
          fmt::format("removed {}, which a save left unfinished", name));
    } catch (const StorageError& error) {
      if (!without_suffix(name, kRemovedSuffix))
        throw;
      lines.push_back(fmt::format(
          "{}; it is no checkpoint any more: remove it", error.what()));
    }
  }
  return lines;
}

namespace {

// False for a damaged one: which run wrote it is unknown.
bool is_of_run(const fs::path& directory, const std::string& run) {
  if (run.empty())
    return true;
  try {
    return read_manifest(directory).run == run;
  } catch (const DataError&) {
    return false;
  }
}

fs::path unused_name_aside(const fs::path& directory) {
  fs::path name = with_suffix(directory, ".set-aside");
  for (int i = 2; fs::exists(fs::symlink_status(name)); ++i)
    name = with_suffix(directory, fmt::format(".set-aside-{}", i));
  return name;
}

}  // namespace

std::vector<int64_t> set_aside_other_checkpoints(
    const fs::path& folder,
    int64_t step,
    const std::string& run) {
  std::vector<int64_t> moved;
  int64_t newest_left = -1;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    if (entry.step <= step && is_of_run(entry.directory, run)) {
      newest_left = entry.step;
      continue;
    }
    std::error_code error;
    fs::rename(entry.directory, unused_name_aside(entry.directory), error);
    if (error) {
      throw StorageError(fmt::format(
          "[checkpoint] cannot set '{}' aside: {}",
          entry.directory.string(),
          error.message()));
    }
    moved.push_back(entry.step);
  }
  if (moved.empty())
    return moved;
  if (newest_left >= 0) {
    note_latest(folder, newest_left);
  } else {
    std::error_code ignored;
    fs::remove(folder / kLatestFile, ignored);
  }
  sync_directory(folder);
  return moved;
}

std::vector<int64_t> steps_to_remove(
    const std::vector<int64_t>& steps,
    const Retention& retention) {
  std::vector<int64_t> removed;
  if (retention.keep_last <= 0)
    return removed;
  const auto count = static_cast<int64_t>(steps.size());
  for (int64_t i = 0; i < count - retention.keep_last; ++i) {
    const int64_t step = steps[static_cast<size_t>(i)];
    if (retention.keep_every <= 0 || step % retention.keep_every != 0)
      removed.push_back(step);
  }
  return removed;
}

namespace {

// First under a name that is no checkpoint's: a kill in between leaves nothing
// that looks like one and is not.
void remove_checkpoint(const fs::path& path) {
  const fs::path leaving = with_suffix(path, kRemovedSuffix);
  std::error_code error;
  fs::rename(path, leaving, error);
  if (error) {
    throw StorageError(fmt::format(
        "[checkpoint] cannot remove '{}': {}", path.string(), error.message()));
  }
  remove_or_throw(leaving);
}

}  // namespace

std::vector<int64_t> prune_checkpoints(
    const fs::path& folder,
    const Retention& retention,
    int64_t newest) {
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : list_checkpoints(folder)) {
    if (entry.step <= newest)
      steps.push_back(entry.step);
  }
  const auto removed = steps_to_remove(steps, retention);
  std::vector<std::string> failures;
  for (const int64_t step : removed) {
    try {
      remove_checkpoint(folder / std::to_string(step));
    } catch (const StorageError& error) {
      failures.emplace_back(error.what());
    }
  }
  if (!failures.empty())
    throw StorageError(fmt::format("{}", fmt::join(failures, "; ")));
  return removed;
}

}  // namespace brigade
