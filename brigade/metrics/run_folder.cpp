#include "brigade/metrics/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/files/file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// A run that continues may write where it was begun.
bool continues(const TrainConfig& config) {
  return !config.checkpoint.load_path.empty();
}

constexpr std::string_view kNumber = "{n}";

std::string numbered(std::string pattern, int64_t number) {
  const size_t at = pattern.find(kNumber);
  if (at != std::string::npos)
    pattern.replace(at, kNumber.size(), std::to_string(number));
  return pattern;
}

}  // namespace

void number_run_folder(TrainConfig& config) {
  std::string& run_dir = config.logging.run_dir;
  if (run_dir.find(kNumber) == std::string::npos)
    return;
  int64_t number = 1;
  while (fs::exists(numbered(run_dir, number)))
    ++number;
  run_dir = numbered(run_dir, number);
  config.checkpoint.save_dir = numbered(config.checkpoint.save_dir, number);
}

fs::path checkpoint_folder(const TrainConfig& config) {
  if (!config.checkpoint.save_dir.empty())
    return config.checkpoint.save_dir;
  return fs::path(config.logging.run_dir) / "checkpoints";
}

void check_run_folder(const TrainConfig& config) {
  const fs::path path = config.logging.run_dir;
  const RunFolder folder{path};
  if (fs::exists(folder.metrics()) && !config.run.overwrite &&
      !continues(config)) {
    throw ConfigError(fmt::format(
        "/logging/run_dir: '{}' already holds a run; continue it with "
        "checkpoint.load_path, choose another logging.run_name or "
        "logging.run_dir, or replace it with --overwrite",
        path.string()));
  }
  // The nearest ancestor that exists must let us in.
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  if (!fs::is_directory(existing) || ::access(existing.c_str(), W_OK) != 0) {
    throw StorageError(fmt::format(
        "[run_folder] cannot write to '{}', which the run folder '{}' needs; "
        "choose another logging.run_dir",
        existing.string(),
        path.string()));
  }
}

RunFolder open_run_folder(const TrainConfig& config) {
  check_run_folder(config);
  RunFolder folder{config.logging.run_dir};
  try {
    if (config.run.overwrite && !continues(config)) {
      fs::remove(folder.metrics());
      fs::remove_all(folder.path / "checkpoints");
      for (int rank = 0; fs::remove(folder.trace(rank)); ++rank) {
      }
    }
    fs::create_directories(folder.path);
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format(
        "[run_folder] cannot make '{}': {}",
        folder.path.string(),
        error.code().message()));
  }
  write_text_file(folder.config(), to_json(config).dump(2) + "\n");
  return folder;
}

}  // namespace brigade
