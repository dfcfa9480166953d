// brigade checkpoint list|verify|inspect|prune|convert PATH
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/checkpoint_folder.h"
#include "brigade/checkpoint/convert.h"
#include "brigade/checkpoint/verify.h"
#include "cli/commands.h"
#include "cli/inspect.h"

namespace brigade::cli {

namespace {

namespace fs = std::filesystem;

struct CheckpointArguments {
  std::string path;
  std::string out;
  Retention retention;
  bool is_dry_run = false;
};

// The folder of checkpoints of a run folder, or the path itself.
fs::path folder_of(const fs::path& path) {
  const fs::path inside = path / "checkpoints";
  return fs::is_directory(inside) ? inside : path;
}

// FOLDER's checkpoints, or the one that the path is.
std::vector<CheckpointEntry> entries_of(const fs::path& path) {
  if (fs::exists(path / kManifestFile))
    return {{read_manifest(path).step, path}};
  auto entries = list_checkpoints(folder_of(path));
  if (entries.empty()) {
    throw DataError(fmt::format(
        "[checkpoint] '{}' is no checkpoint and holds none", path.string()));
  }
  return entries;
}

uint64_t size_of(const fs::path& directory) {
  uint64_t size_bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file())
      size_bytes += entry.file_size();
  }
  return size_bytes;
}

void list(const CheckpointArguments& arguments) {
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
        readable_bytes(size_of(entry.directory)),
        grouped(static_cast<uint64_t>(manifest.tokens)),
        manifest.dtype,
        manifest.writers,
        manifest.writers == 1 ? "" : "s",
        manifest.run.empty() ? "unknown" : manifest.run);
  }
}

void verify(const CheckpointArguments& arguments) {
  bool all_are_valid = true;
  for (const CheckpointEntry& entry : entries_of(arguments.path)) {
    const std::string reason =
        find_reason_to_reject(entry.directory, VerifyLevel::kFull);
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

void prune(const CheckpointArguments& arguments) {
  const fs::path folder = folder_of(arguments.path);
  auto entries = list_checkpoints(folder);
  // What is kept must be worth it: the newest that is valid counts as the last.
  while (!entries.empty() &&
         !find_reason_to_reject(entries.back().directory, VerifyLevel::kFull)
              .empty()) {
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
          : prune_checkpoints(folder, arguments.retention, entries.back().step);
  for (const int64_t step : removed) {
    fmt::print(
        "{} {}\n",
        arguments.is_dry_run ? "would remove" : "removed",
        (folder / std::to_string(step)).string());
  }
  fmt::print("kept {} of {}\n", steps.size() - removed.size(), steps.size());
}

void convert(const CheckpointArguments& arguments) {
  convert_checkpoint(arguments.path, arguments.out);
  fmt::print("wrote {}\n", arguments.out);
}

CLI::App* add_action(
    CLI::App& command,
    const std::string& name,
    const std::string& help,
    const std::shared_ptr<CheckpointArguments>& arguments,
    void (*run)(const CheckpointArguments&)) {
  CLI::App* action = command.add_subcommand(name, help);
  action
      ->add_option(
          "path",
          arguments->path,
          "A checkpoint, a folder of checkpoints, or a run folder")
      ->required();
  action->callback([arguments, run] { run(*arguments); });
  return action;
}

void inspect(const CheckpointArguments& arguments) {
  inspect_checkpoint(arguments.path, {});
}

}  // namespace

void add_checkpoint(CLI::App& app) {
  auto arguments = std::make_shared<CheckpointArguments>();
  CLI::App* command = app.add_subcommand(
      "checkpoint", "List, verify, inspect, prune or convert checkpoints");
  command->require_subcommand(1);
  add_action(
      *command, "list", "One line per checkpoint, by step", arguments, list);
  add_action(
      *command,
      "verify",
      "Compare every file with the SHA-256 that was written; exit code 4 when "
      "one differs",
      arguments,
      verify);
  add_action(
      *command,
      "inspect",
      "Where a checkpoint stands and what it holds",
      arguments,
      inspect);
  CLI::App* pruning = add_action(
      *command,
      "prune",
      "Remove old checkpoints; the newest valid one always stays",
      arguments,
      prune);
  pruning
      ->add_option(
          "--keep-last", arguments->retention.keep_last, "The newest so many")
      ->required()
      ->check(CLI::PositiveNumber);
  pruning->add_option(
      "--keep-every",
      arguments->retention.keep_every,
      "And those of steps that this divides (default: none)");
  pruning->add_flag(
      "--dry-run",
      arguments->is_dry_run,
      "Only print what would be removed (default: off)");
  CLI::App* converting = add_action(
      *command,
      "convert",
      "Rewrite a checkpoint in the current format, with whole tensors in one "
      "file each\nfor weights and optimizer",
      arguments,
      convert);
  converting
      ->add_option(
          "--out", arguments->out, "The directory to write; it must not exist")
      ->type_name("DIR")
      ->required();
  command->footer(
      "Example: brigade checkpoint verify runs/run\n"
      "         brigade checkpoint prune runs/run --keep-last 2 --keep-every "
      "1000");
}

}  // namespace brigade::cli
