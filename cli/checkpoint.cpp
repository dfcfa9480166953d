// brigade checkpoint list|verify|inspect|prune|convert PATH
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "brigade/base/error.h"
#include "brigade/base/readable.h"
#include "brigade/checkpoint/convert.h"
#include "brigade/checkpoint/verify.h"
#include "brigade/files/output_path.h"
#include "brigade/run/checkpoint_folder.h"
#include "cli/commands.h"
#include "cli/inspect.h"
#include "cli/rate_bar.h"
#include "cli/torch_commands.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

// FOLDER's checkpoints, or the one that the path is.
std::vector<CheckpointEntry> entries_of(const fs::path& path) {
  if (fs::exists(path / kManifestFile))
    return {{read_manifest(path).step, path}};
  auto entries = brigade::list_checkpoints(folder_of_checkpoints(path));
  if (entries.empty()) {
    throw DataError(fmt::format(
        "[checkpoint] '{}' is no checkpoint and holds none", path.string()));
  }
  return entries;
}

// As find_reason_to_reject(), with a bar.
std::string reason_to_reject(const fs::path& directory) {
  RateBar bar;
  return find_reason_to_reject(
      directory,
      VerifyLevel::kFull,
      bar.labelled("verifying " + directory.string()));
}

uint64_t size_of(const fs::path& directory) {
  uint64_t size_bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file())
      size_bytes += entry.file_size();
  }
  return size_bytes;
}

}  // namespace

void list_checkpoints(const CheckpointArguments& arguments) {
  for (const CheckpointEntry& entry : entries_of(arguments.path)) {
    const std::string reason =
        find_reason_to_reject(entry.directory, VerifyLevel::kSize);
    if (!reason.empty()) {
      fmt::print("{:>8}  NOT VALID: {}\n", entry.step, reason);
      continue;
    }
    const CheckpointManifest manifest = read_manifest(entry.directory);
    fmt::print(
        "{:>8}  {:>10}  {} tokens, {}, {} rank{}, run {}\n",
        manifest.step,
        readable_bytes(static_cast<double>(size_of(entry.directory))),
        grouped(static_cast<uint64_t>(manifest.tokens)),
        manifest.dtype,
        manifest.writers,
        manifest.writers == 1 ? "" : "s",
        manifest.run.empty() ? "unknown" : manifest.run);
  }
}

void verify_checkpoints(const CheckpointArguments& arguments) {
  bool all_are_valid = true;
  for (const CheckpointEntry& entry : entries_of(arguments.path)) {
    const std::string reason = reason_to_reject(entry.directory);
    all_are_valid = all_are_valid && reason.empty();
    std::string verdict = "NOT VALID: " + reason;
    if (reason.empty())
      verdict = read_manifest(entry.directory).is_verifiable()
                    ? "valid"
                    : "whole, but of an older version without SHA-256";
    fmt::print("{}  {}\n", entry.directory.string(), verdict);
  }
  if (!all_are_valid)
    throw Exit{static_cast<int>(ExitCode::kData)};
}

void prune_checkpoints(const CheckpointArguments& arguments) {
  const fs::path folder = folder_of_checkpoints(arguments.path);
  auto entries = brigade::list_checkpoints(folder);
  // What is kept must be worth it: the newest that is valid counts as the last.
  while (!entries.empty() &&
         !reason_to_reject(entries.back().directory).empty()) {
    fmt::print("kept {}: not valid\n", entries.back().directory.string());
    entries.pop_back();
  }
  if (entries.empty()) {
    throw DataError(fmt::format(
        "[checkpoint] '{}' holds no valid checkpoint; nothing was removed",
        folder.string()));
  }
  std::vector<int64_t> steps;
  for (const CheckpointEntry& entry : entries)
    steps.push_back(entry.step);
  const auto removed =
      arguments.is_dry_run
          ? steps_to_remove(steps, arguments.retention)
          : brigade::prune_checkpoints(
                folder, arguments.retention, entries.back().step);
  for (const int64_t step : removed) {
    fmt::print(
        "{} {}\n",
        arguments.is_dry_run ? "would remove" : "removed",
        (folder / std::to_string(step)).string());
  }
  fmt::print("kept {} of {}\n", steps.size() - removed.size(), steps.size());
}

void convert_checkpoint(const CheckpointArguments& arguments) {
  check_can_make(arguments.out);
  brigade::convert_checkpoint(arguments.path, arguments.out);
  fmt::print("wrote {}\n", arguments.out);
}

void show_checkpoint(const CheckpointArguments& arguments) {
  inspect_checkpoint(arguments.path, {});
}

}  // namespace brigade::cli
