#include "brigade/wrap/weight_units.h"

#include <fmt/format.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <unordered_map>

#include "brigade/base/error.h"

namespace brigade {
namespace {

std::string joined(const std::string& folder, const std::string& name) {
  return folder.empty() ? name : folder + "." + name;
}

bool is_list(const torch::nn::Module& module) {
  return module.as<torch::nn::Sequential>() != nullptr ||
         module.as<torch::nn::ModuleList>() != nullptr;
}

void add_units(
    const torch::nn::Module& module,
    const std::string& folder,
    std::vector<std::string>& units) {
  for (const auto& child : module.named_children()) {
    const std::string name = joined(folder, child.key());
    if (is_list(module))
      units.push_back(name);
    else
      add_units(*child.value(), name, units);
  }
}

}  // namespace

std::vector<std::string> default_units(const torch::nn::Module& module) {
  std::vector<std::string> units;
  add_units(module, "", units);
  return units;
}

void assign_units(
    const torch::nn::Module& module,
    const std::vector<std::string>& units,
    std::vector<Param>& params) {
  const auto modules =
      module.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  std::unordered_map<const void*, std::string> unit_of;
  for (const std::string& unit : units) {
    const auto* found = modules.find(unit);
    if (found == nullptr) {
      throw UsageError(fmt::format(
          "[data_parallel] units names '{}', but the module has no submodule "
          "of that name; give full names, as named_modules() does",
          unit));
    }
    for (const torch::Tensor& param : (*found)->parameters())
      unit_of.emplace(param.unsafeGetTensorImpl(), unit);
  }
  std::map<std::string, int> numbers;  // "": outside of all
  for (Param& param : params) {
    const auto found = unit_of.find(param.tensor.unsafeGetTensorImpl());
    const std::string unit = found == unit_of.end() ? "" : found->second;
    param.unit =
        numbers.emplace(unit, static_cast<int>(numbers.size())).first->second;
  }
}

}  // namespace brigade
