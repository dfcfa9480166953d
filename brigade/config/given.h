// What the file and the command line give, before it has types: private to
// train_config.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/config/keys.h"
#include "brigade/config/train_config.h"

namespace brigade {

struct GivenValue {
  nlohmann::json value;
  ValueOrigin origin = ValueOrigin::kDefault;
  std::string place;  // "examples/quickstart.json", "command line"
};
using GivenValues = std::map<const ConfigKey*, GivenValue>;

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

}  // namespace brigade
