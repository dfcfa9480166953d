// What a run left on disk, for people who look at it afterwards or meanwhile.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/topology/parallel_dims.h"

namespace brigade {

struct RunRecord {
  std::string name;  // the folder's
  std::filesystem::path path;
  nlohmann::json config;               // config.json; null: none
  std::vector<nlohmann::json> steps;   // metrics.jsonl, one object per step
  std::vector<nlohmann::json> events;  // events.jsonl, one object per event
  nlohmann::json timeline;             // read_timeline()
  std::string failure;  // why the run ended, where its ranks left a record
  std::vector<int64_t> checkpoints;  // steps, ascending
};

// `failure` is left to the caller. Throws DataError when the folder holds no
// run: neither config.json nor metrics.jsonl. A last line that is being written
// is left out.
RunRecord read_run(const std::filesystem::path& folder);

// `folder` itself, or the runs in it (two levels deep), by name. Throws
// DataError when there is none.
std::vector<RunRecord> read_runs(const std::filesystem::path& folder);

// config.group.key; null where the config has no such value.
nlohmann::json
config_value(const nlohmann::json& config, const char* group, const char* key);

// The same as an integer; `otherwise` where it is absent or no integer.
int64_t config_number(
    const nlohmann::json& config,
    const char* group,
    const char* key,
    int64_t otherwise);

// The same as text.
std::string config_text(
    const nlohmann::json& config,
    const char* group,
    const char* key,
    const std::string& otherwise);

// The layout; 1 for an axis that the config does not give.
ParallelDims dims_of(const nlohmann::json& config);

// How far a run is.
struct Trained {
  int64_t steps = 0;
  int64_t tokens = 0;  // which its steps may have had by another batch size
};

// The step with which a run of this config ends that has trained so far:
// training.total_train_steps, or the last that training.max_tokens allows.
// 0: the config does not say.
int64_t last_step_of(const nlohmann::json& config, const Trained& trained = {});
// By the last line of its metrics.
int64_t last_step_of(const RunRecord& run);

// How the run's last start ended, by events.jsonl: "completed", "stopped" or
// "failed"; "": it goes on, was killed or stalled, or left no event.
std::string end_of(const RunRecord& run);

// A number of a line of metrics.jsonl; NaN where it is absent, or null, which
// stands for a value that was not finite.
double step_value(const nlohmann::json& step, const char* key);
// The number of the line's step; 0 where it is no integer.
int64_t step_number(const nlohmann::json& step);

}  // namespace brigade
