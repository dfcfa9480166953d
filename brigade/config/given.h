// The values of the config file and the command line, before they have types.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "brigade/config/keys.h"
#include "brigade/config/train_config.h"

namespace brigade {

struct GivenValue {
  nlohmann::json value;
  ValueOrigin origin = ValueOrigin::kDefault;
  std::string place;  // "examples/quickstart.json", "command line"
  std::string text;   // of an override, as the user wrote it
};
using GivenValues = std::map<const ConfigKey*, GivenValue>;

// The value of a JSON file, or std::nullopt after a syntax error. Adds
// "[config] FILE:LINE:COLUMN: not valid JSON, at /training/seed: ..." for each
// fault; a repeated key is one, and its last value is read.
std::optional<nlohmann::json> read_config_json(
    const std::string& text,
    const std::string& source,
    std::vector<std::string>& problems);

// The value as the user wrote it: "99999999999999999999", where JSON has 1e+20.
std::string shown_value(const GivenValue& given);

// "[config] /distributed/dpsize = 2 (command line): "
std::string introduce_problem(
    const std::string& pointer,
    const nlohmann::json& value,
    const std::string& place);

// Both add a problem for each key that does not exist, naming the nearest.
void collect_file(
    const nlohmann::json& file,
    const std::string& source,
    GivenValues& given,
    std::vector<std::string>& problems);
void collect_override(
    const ConfigOverride& override,
    GivenValues& given,
    std::vector<std::string>& problems);

// "dataset.name=TEXT" as collect_override() takes it: in quotes of JSON where
// the text alone means something else, such as null.
std::string text_override(const std::string& key, const std::string& text);

// The problem of a text that cannot stand in a config, which is JSON.
std::optional<std::string> find_utf8_problem(
    const std::string& text,
    const std::string& place);

}  // namespace brigade
