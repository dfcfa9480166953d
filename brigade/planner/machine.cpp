#include "brigade/planner/machine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "brigade/base/check.h"
#include "brigade/base/embedded.h"
#include "brigade/base/error.h"

namespace brigade::planner {
namespace {

constexpr const char* kCollectiveNames[] = {
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "exchange"};
constexpr const char* kDtypeNames[] = {"fp32", "bf16", "fp8", "mxfp8", "fp4"};

}  // namespace

const char* to_string(Collective collective) {
  return kCollectiveNames[static_cast<size_t>(collective)];
}

const char* to_string(ProductDtype dtype) {
  return kDtypeNames[static_cast<size_t>(dtype)];
}

std::optional<ProductDtype> parse_product_dtype(std::string_view name) {
  for (int i = 0; i < kProductDtypes; ++i) {
    if (name == kDtypeNames[i])
      return static_cast<ProductDtype>(i);
  }
  return std::nullopt;
}

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

}  // namespace brigade::planner
