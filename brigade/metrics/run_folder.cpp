#include "brigade/metrics/run_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/files/file.h"
#include "brigade/json/parse.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// A run that continues may write where it was begun.
bool continues(const TrainConfig& config) {
  return !config.checkpoint.load_path.empty();
}

// `path` or its nearest ancestor that exists.
fs::path nearest_existing(const fs::path& path) {
  fs::path existing = fs::absolute(path);
  while (!fs::exists(existing) && existing.has_relative_path())
    existing = existing.parent_path();
  return existing;
}

// Any folder named by its step as a save does, unlike "007"; whether it is
// valid is seen when it is loaded.
bool holds_checkpoints(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const auto step = parse_number<int64_t>(name);
    if (step && *step >= 0 && name == std::to_string(*step))
      return true;
  }
  return false;
}

bool is_writable(const fs::path& folder) {
  return fs::is_directory(folder) && ::access(folder.c_str(), W_OK) == 0;
}

// What a run writes of its steps and events, as far as it is there; nothing
// where other programs' files have such names. The events, which say whose
// record it is, are last: who is killed amid them can begin again.
std::vector<fs::path> record_files(const RunFolder& folder) {
  std::vector<fs::path> files;
  if (!fs::exists(folder.metrics()) && !fs::exists(folder.events()))
    return files;
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    const std::string name = entry.path().filename();
    if (name == "metrics.jsonl" || name == "events.jsonl" ||
        name == "metrics.csv" || name.starts_with("events.out.tfevents."))
      files.push_back(entry.path());
  }
  std::ranges::sort(files, {}, [](const fs::path& file) {
    return file.filename() == "events.jsonl";
  });
  return files;
}

// The id of the run that was started there last; "": not known.
std::string run_in(const RunFolder& folder) {
  std::string run;
  if (!fs::is_regular_file(folder.events()))  // a pipe would be waited for
    return run;
  std::ifstream events(folder.events());
  for (std::string line; std::getline(events, line);) {
    const auto event = parse_json_or_nothing(line);
    if (!event || !event->is_object() ||
        event->value("event", nlohmann::json()) != "start")
      continue;
    const auto id = event->value("run", nlohmann::json());
    run = id.is_string() ? id.get<std::string>() : "";
  }
  return run;
}

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    throw StorageError(fmt::format(
        "[run_folder] cannot make '{}': {}", path.string(), error.message()));
  }
}

// What a run wrote there: STEP and what begins with "STEP." (a save that was
// killed, what was set aside), and "latest". Nothing else, not even the lock.
void remove_checkpoints(const fs::path& folder) {
  if (!fs::is_directory(folder))
    return;
  std::vector<fs::path> old;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    const size_t digits = name.find_first_not_of("0123456789");
    const bool is_step =
        digits == std::string::npos || (digits > 0 && name[digits] == '.');
    if (is_step || name == "latest")
      old.push_back(entry.path());
  }
  for (const fs::path& path : old)
    fs::remove_all(path);
}

constexpr std::string_view kNumber = "{n}";

std::string numbered(std::string pattern, int64_t number) {
  const size_t at = pattern.find(kNumber);
  if (at != std::string::npos)
    pattern.replace(at, kNumber.size(), std::to_string(number));
  return pattern;
}

// The run with checkpoints and the highest number; 0: there is none.
int64_t newest_run(TrainConfig config) {
  const std::string run_dir = config.logging.run_dir;
  const std::string save_dir = config.checkpoint.save_dir;
  const size_t at = run_dir.find(kNumber);
  const size_t begin = run_dir.rfind('/', at) + 1;  // 0 where there is none
  const std::string prefix = run_dir.substr(begin, at - begin);
  int64_t newest = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(
           begin == 0 ? "." : run_dir.substr(0, begin), error)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix))
      continue;
    const size_t end = name.find_first_not_of("0123456789", prefix.size());
    const int64_t number =
        parse_number<int64_t>(
            std::string_view(name).substr(0, end).substr(prefix.size()))
            .value_or(0);
    config.logging.run_dir = numbered(run_dir, number);
    config.checkpoint.save_dir = numbered(save_dir, number);
    if (number > newest && fs::exists(config.logging.run_dir) &&
        holds_checkpoints(checkpoint_folder(config)))
      newest = number;
  }
  return newest;
}

}  // namespace

void number_run_folder(TrainConfig& config) {
  std::string& run_dir = config.logging.run_dir;
  if (run_dir.find(kNumber) == std::string::npos)
    return;
  int64_t number =
      config.checkpoint.load_path == "auto" ? newest_run(config) : 0;
  if (number == 0) {
    number = 1;
    while (fs::exists(numbered(run_dir, number)))
      ++number;
  }
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
  const bool is_taken = fs::exists(folder.metrics()) && !config.run.overwrite &&
                        !continues(config);
  if (is_taken && !holds_checkpoints(checkpoint_folder(config))) {
    throw ConfigError(fmt::format(
        "/logging/run_dir: '{}' already holds a run, which has no checkpoint "
        "to continue; begin a new one with --overwrite, or choose another "
        "logging.run_name or logging.run_dir",
        path.string()));
  }
  if (is_taken) {
    throw ConfigError(fmt::format(
        "/logging/run_dir: '{}' already holds a run; continue it with "
        "checkpoint.load_path, choose another logging.run_name or "
        "logging.run_dir, or replace it with --overwrite",
        path.string()));
  }
  const fs::path existing = nearest_existing(path);
  if (!is_writable(existing)) {
    throw StorageError(fmt::format(
        "[run_folder] cannot write to '{}', which the run folder '{}' needs; "
        "choose another logging.run_dir",
        existing.string(),
        path.string()));
  }
}

void check_checkpoint_folder(
    const TrainConfig& config,
    uint64_t checkpoint_bytes) {
  const fs::path folder = checkpoint_folder(config);
  const fs::path existing = nearest_existing(folder);
  if (!is_writable(existing)) {
    throw StorageError(fmt::format(
        "[run_folder] cannot write to '{}', which checkpoint.save_dir '{}' "
        "needs; choose another checkpoint.save_dir",
        existing.string(),
        folder.string()));
  }
  std::error_code unknown;
  const fs::space_info space = fs::space(existing, unknown);
  if (unknown || space.available >= checkpoint_bytes)
    return;
  throw StorageError(fmt::format(
      "[run_folder] a checkpoint of this run has {} bytes, but the disk of "
      "checkpoint.save_dir '{}' has {} free; free some space or choose another "
      "checkpoint.save_dir",
      checkpoint_bytes,
      folder.string(),
      space.available));
}

void check_prometheus_file(const LoggingConfig& logging) {
  if (logging.prometheus_file.empty())
    return;
  const fs::path folder = fs::absolute(logging.prometheus_file).parent_path();
  // The run's own folder may be there only once it starts.
  if (fs::weakly_canonical(folder / "") ==
      fs::weakly_canonical(fs::absolute(logging.run_dir) / ""))
    return;
  if (!is_writable(folder))
    throw StorageError(fmt::format(
        "[run_folder] cannot write to '{}', which logging.prometheus_file "
        "'{}' needs; make that folder, or choose another file",
        folder.string(),
        logging.prometheus_file));
}

std::unique_ptr<FolderLock> lock_run_folder(const TrainConfig& config) {
  make_folder(config.logging.run_dir);
  return std::make_unique<FolderLock>(config.logging.run_dir, "the run folder");
}

std::unique_ptr<FolderLock> lock_checkpoint_folder(const TrainConfig& config) {
  const fs::path folder = checkpoint_folder(config);
  make_folder(folder);
  return std::make_unique<FolderLock>(folder, "the folder of checkpoints");
}

void open_run_folder(const TrainConfig& config) {
  check_run_folder(config);
  const RunFolder folder{config.logging.run_dir};
  try {
    if (config.run.overwrite && !continues(config)) {
      for (const fs::path& file : record_files(folder))
        fs::remove(file);
      remove_checkpoints(checkpoint_folder(config));
      for (int rank = 0; fs::remove(folder.trace(rank)); ++rank) {
      }
    }
    // It holds what this start does; what led to it stays in the previous one.
    if (fs::exists(folder.flight())) {
      fs::remove_all(folder.previous_flight());
      fs::rename(folder.flight(), folder.previous_flight());
    }
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format(
        "[run_folder] cannot remove what '{}' held: {}",
        folder.path.string(),
        error.code().message()));
  }
  make_folder(folder.path);
  write_text_file(folder.config(), to_json(config).dump(2) + "\n");
}

fs::path set_aside_other_run(const RunFolder& folder, const std::string& run) {
  const std::string before = run_in(folder);
  if (run.empty() || before.empty() || before == run)
    return {};
  fs::path aside = folder.path / "set-aside";
  for (int number = 2; fs::exists(aside); ++number)
    aside = folder.path / fmt::format("set-aside-{}", number);
  make_folder(aside);
  try {
    for (const fs::path& file : record_files(folder))
      fs::rename(file, aside / file.filename());
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format(
        "[run_folder] cannot move what '{}' held to '{}': {}",
        folder.path.string(),
        aside.string(),
        error.code().message()));
  }
  return aside;
}

}  // namespace brigade
