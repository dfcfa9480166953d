#include "brigade/machine/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "brigade/base/check.h"
#include "brigade/base/embedded.h"
#include "brigade/base/error.h"

namespace brigade::machine {

const std::vector<Machine>& known_machines() {
  static const std::vector<Machine> machines = [] {
    std::vector<Machine> all;
    std::vector<std::string> problems;
    for (const auto& file : nlohmann::json::parse(embedded::machines_json))
      all.push_back(parse_machine(file, "", problems));
    BRIGADE_ASSERT(problems.empty(), "{}", fmt::join(problems, "; "));
    return all;
  }();
  return machines;
}

const Machine& find_machine(std::string_view name) {
  std::vector<std::string> names;
  for (const Machine& machine : known_machines()) {
    if (machine.name == name)
      return machine;
    names.push_back(machine.name);
  }
  throw ConfigError(fmt::format(
      "[planner] unknown machine '{}'; known are {}; or give a JSON file with "
      "{}",
      name,
      fmt::join(names, ", "),
      machine_fields()));
}

}  // namespace brigade::machine
