#include "brigade/report/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "brigade/base/error.h"
#include "brigade/base/parse_number.h"
#include "brigade/files/file.h"
#include "brigade/files/usual_path.h"
#include "brigade/report/run_timeline.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool is_run(const fs::path& folder) {
  return has_file(folder / "metrics.jsonl");
}

// The entries of a folder may be anything: a loop of links is no run.
bool is_run_among_others(const fs::path& entry) {
  return !loop_in(entry) && is_run(entry);
}

// The objects with that member; a line that is being written is left out.
std::vector<json> read_lines(const fs::path& path, const char* member) {
  std::vector<json> steps;
  if (!fs::is_regular_file(path))  // a pipe (FIFO) would be waited for
    return steps;
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
    const auto step = parse_number<int64_t>(entry.path().filename().string());
    if (step && fs::exists(entry.path() / "manifest.json"))
      steps.push_back(*step);
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
  // In this order: with the event of the end all steps are there.
  run.events = read_lines(folder / "events.jsonl", "event");
  run.steps = read_lines(folder / "metrics.jsonl", "step");
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
    if (is_run_among_others(entry.path()))
      folders.push_back(entry.path());
    else if (std::error_code unknown; entry.is_directory(unknown)) {
      for (const auto& inner : fs::directory_iterator(entry.path(), error)) {
        if (is_run_among_others(inner.path()))
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

json config_value(const json& config, const char* group, const char* key) {
  if (!config.is_object() || !config.contains(group) ||
      !config[group].is_object())
    return nullptr;
  return config[group].value(key, json());
}

int64_t config_number(
    const json& config,
    const char* group,
    const char* key,
    int64_t otherwise) {
  const json value = config_value(config, group, key);
  return value.is_number_integer() ? value.get<int64_t>() : otherwise;
}

std::string config_text(
    const json& config,
    const char* group,
    const char* key,
    const std::string& otherwise) {
  const json value = config_value(config, group, key);
  return value.is_string() ? value.get<std::string>() : otherwise;
}

ParallelDims dims_of(const json& config) {
  return read_dims([&](const std::string& key) {
    return config_number(config, "distributed", key.c_str(), 1);
  });
}

int64_t last_step_of(const json& config, const Trained& trained) {
  const auto number = [&](const char* group, const char* key) {
    return config_number(config, group, key, 0);
  };
  const int64_t total = number("training", "total_train_steps");
  const int64_t most_tokens = number("training", "max_tokens");
  int64_t step_tokens = dims_of(config).batch_parts();
  for (const char* key :
       {"micro_batch_size", "gradient_accumulation_steps", "seq_length"}) {
    // Files may say anything.
    if (__builtin_mul_overflow(
            step_tokens, number("training", key), &step_tokens))
      return total;
  }
  if (most_tokens <= 0 || step_tokens <= 0)
    return total;
  const int64_t left =
      std::max<int64_t>(0, most_tokens - std::max<int64_t>(0, trained.tokens));
  int64_t last = 0;
  return __builtin_add_overflow(trained.steps, left / step_tokens, &last)
             ? total
             : std::min(total, last);
}

int64_t last_step_of(const RunRecord& run) {
  if (run.steps.empty())
    return last_step_of(run.config);
  const json& last = run.steps.back();
  const auto tokens = last.find("tokens");
  if (tokens == last.end() || !tokens->is_number_integer())
    return last_step_of(run.config);
  return last_step_of(run.config, {step_number(last), tokens->get<int64_t>()});
}

std::string end_of(const RunRecord& run) {
  const json last = run.events.empty() ? json::object() : run.events.back();
  const json event = last.value("event", json());
  if (event == "end")
    return last.value("stopped", json()) == true ? "stopped" : "completed";
  return event == "failed" ? "failed" : "";
}

double step_value(const json& step, const char* key) {
  const auto found = step.find(key);
  return found != step.end() && found->is_number()
             ? found->get<double>()
             : std::numeric_limits<double>::quiet_NaN();
}

int64_t step_number(const json& step) {
  const auto found = step.find("step");
  return found != step.end() && found->is_number_integer()
             ? found->get<int64_t>()
             : 0;
}

}  // namespace brigade
