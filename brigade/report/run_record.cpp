#include "brigade/report/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/report/run_timeline.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_run(const fs::path& folder) {
  return fs::is_regular_file(folder / "metrics.jsonl");
}

// The objects with that member; a line that is being written is left out.
std::vector<json> read_lines(const fs::path& path, const char* member) {
  std::vector<json> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    json step = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (step.is_object() && step.contains(member))
      steps.push_back(std::move(step));
  }
  return steps;
}

std::vector<int64_t> read_checkpoints(const fs::path& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    int64_t step = 0;
    const auto [end, problem] =
        std::from_chars(name.data(), name.data() + name.size(), step);
    if (problem == std::errc() && end == name.data() + name.size() &&
        fs::exists(entry.path() / "manifest.json"))
      steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace

RunRecord read_run(const fs::path& folder) {
  RunRecord run;
  run.path = folder;
  run.name = fs::weakly_canonical(folder).filename().string();
  if (!is_run(folder) && !fs::exists(folder / "config.json"))
    throw DataError(fmt::format(
        "[report] '{}' is no run folder: it holds neither metrics.jsonl nor "
        "config.json",
        folder.string()));
  if (fs::exists(folder / "config.json"))
    run.config =
        json::parse(read_text_file(folder / "config.json"), nullptr, false);
  if (!run.config.is_object())
    run.config = nullptr;
  run.steps = read_lines(folder / "metrics.jsonl", "step");
  run.events = read_lines(folder / "events.jsonl", "event");
  run.timeline = read_timeline(folder);
  run.checkpoints = read_checkpoints(folder / "checkpoints");
  return run;
}

std::vector<RunRecord> read_runs(const fs::path& folder) {
  if (is_run(folder))
    return {read_run(folder)};
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (is_run(entry.path()))
      folders.push_back(entry.path());
    else if (entry.is_directory()) {
      for (const auto& inner : fs::directory_iterator(entry.path(), error)) {
        if (is_run(inner.path()))
          folders.push_back(inner.path());
      }
    }
  }
  if (folders.empty())
    throw DataError(fmt::format(
        "[report] '{}' holds no run: no metrics.jsonl in it or its folders",
        folder.string()));
  std::sort(folders.begin(), folders.end());
  std::vector<RunRecord> runs;
  for (const fs::path& path : folders)
    runs.push_back(read_run(path));
  return runs;
}

int64_t config_number(
    const json& config,
    const char* group,
    const char* key,
    int64_t otherwise) {
  if (!config.is_object() || !config.contains(group))
    return otherwise;
  const json& keys = config[group];
  return keys.is_object() && keys.contains(key) && keys[key].is_number()
             ? keys[key].get<int64_t>()
             : otherwise;
}

}  // namespace brigade
