// Every key of the config, declared once: parsing, printing, the nearest key,
// the docs and the rules of resuming all read this table. A new key is a member
// of an option struct and one entry in keys.cpp, which says how.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "brigade/config/train_config.h"

namespace brigade {

// What another value means for a run that is continued from a checkpoint
// (run/resume_rules.h).
enum class Resume {
  kFree,        // nothing: layout, folders, logging
  kTrajectory,  // other results from here on: allowed, and named in a message
  kMeaning,     // another run: refused unless checkpoint.allow_changes names it
};

struct ConfigKey {
  std::string group;
  std::string name;
  std::string type;   // "integer", "number", "true or false", "text", ...
  std::string range;  // ">= 1", "one of: a, b"; "": any
  Resume resume = Resume::kFree;
  std::string help;
  // How a default that is not fixed comes about: "runs/<run_name>".
  std::string default_note;
  // Why the key is accepted and means nothing here; "": it means something.
  std::string ignored_because;
  // The key of the same group, and its values, beside which alone this one
  // means something; no values: any but null; no name: always. Elsewhere it
  // keeps its default, or is refused.
  struct Condition {
    std::string name;
    std::vector<std::string> values;
  } only_with;
  bool is_secret = false;  // never printed or saved
  bool is_text = false;    // on the command line, taken as it stands

  // Stores the value, or says what was expected instead.
  std::function<std::optional<std::string>(
      TrainConfig& config,
      const nlohmann::json& value)>
      set;
  std::function<nlohmann::json(const TrainConfig& config)> get;

  std::string dotted() const { return group + "." + name; }
  std::string pointer() const { return "/" + group + "/" + name; }
};

// Every key, in the order of the docs. Built once, never changed.
const std::vector<ConfigKey>& config_keys();

// Stores the values that a group of a saved config (to_json()) has. Returns
// false if the group is missing or a value is invalid, whose key keeps its
// present value.
bool read_saved_group(
    const nlohmann::json& saved,
    std::string_view group,
    TrainConfig& config);

// nullptr: no such key.
const ConfigKey* find_config_key(std::string_view group, std::string_view name);
bool is_config_group(std::string_view group);

// The valid key nearest to what was written. Keys of the same group win over
// equally near ones of others.
const ConfigKey& nearest_config_key(
    std::string_view group,
    std::string_view name);

}  // namespace brigade
