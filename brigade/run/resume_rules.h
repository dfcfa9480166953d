// Whether a run may be continued under another config.
//
// Keys that say what the run is (Resume::kMeaning: data, tokenizer, sequence
// length, seed, model, adapter, optimizer, loss, parametrization) must be as
// they were, unless checkpoint.allow_changes names them. Keys that say how it
// goes on (Resume::kTrajectory: rates, schedule; and the batch) may change;
// they are listed. All others (layout, folders, logging) do not matter.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace brigade {

// The values of a run that are compared, by dotted names: those that give it
// its meaning, and those that only change its further trajectory.
struct RunFacts {
  std::map<std::string, nlohmann::json> meaning;
  std::map<std::string, nlohmann::json> trajectory;
  // A weight of dataset.mixture changes with the number of steps, which mean
  // other sequences with another batch. with_past_mixture() notes it.
  bool mixes_by_step = false;
};

// training.optimizer of a checkpoint's config.
std::string saved_optimizer(const nlohmann::json& config);

// `config` is to_json()'s; `model` the normalised Hugging Face config, each key
// of which counts as model.config; `data` what the manifest says of the
// datasets, or null where it is not known.
RunFacts run_facts(
    const nlohmann::json& config,
    const nlohmann::json& model,
    const nlohmann::json& data);

// The config with the weights of dataset.mixture as they were up to so many
// steps and tokens: while those are kept, every part is where it was, whatever
// comes after.
nlohmann::json
with_past_mixture(const nlohmann::json& config, int64_t steps, int64_t tokens);

struct ResumeChanges {
  std::vector<std::string> refused;  // "training.seed: 42 when saved, now 7"
  std::vector<std::string> allowed;  // other meaning, named in allow_changes
  std::vector<std::string> trajectory;
};

// Facts that one side lacks (an older checkpoint) are passed over.
ResumeChanges compare_runs(
    const RunFacts& saved,
    const RunFacts& now,
    const std::vector<std::string>& allow_changes);

}  // namespace brigade
