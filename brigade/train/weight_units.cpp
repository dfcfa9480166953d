#include "brigade/train/weight_units.h"

#include <algorithm>

namespace brigade {
namespace {

constexpr const char* kBeforeLayers = "model.embed_tokens";

bool is_of_layer(const ParameterRow& row) {
  return row.name.starts_with("model.layers.");
}

}  // namespace

// "model.layers.3" of "model.layers.3.mlp.up_proj.weight", "model.norm" of
// "model.norm.weight".
std::string module_of_forward(const std::string& parameter) {
  const bool is_layer = parameter.starts_with("model.layers.");
  size_t end = parameter.find('.');
  for (int dots = 1; end != std::string::npos && dots < (is_layer ? 3 : 2);
       ++dots)
    end = parameter.find('.', end + 1);
  return parameter.substr(0, end);
}

WeightUnits divide_into_units(const std::vector<ParameterRow>& rows) {
  const bool is_tied = std::any_of(rows.begin(), rows.end(), [](auto& row) {
    return !row.tied_head.empty();
  });
  WeightUnits units;
  bool is_before_layers = true;
  for (const ParameterRow& row : rows) {
    std::string module = module_of_forward(row.name);
    is_before_layers = is_before_layers && !is_of_layer(row);
    if (!is_of_layer(row))
      module = is_before_layers || is_tied ? kBeforeLayers : "";
    const int next = static_cast<int>(units.of_module.size());
    units.of_row.push_back(units.of_module.emplace(module, next).first->second);
  }
  if (is_tied)
    units.of_module[""] = units.of_module.at(kBeforeLayers);
  return units;
}

}  // namespace brigade
