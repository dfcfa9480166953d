#include "brigade/model_spec/model_warnings.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "brigade/model_spec/decoder_config.h"

namespace brigade {
namespace {

using nlohmann::json;

bool is_given(const json& dictionary, const char* key) {
  const auto found = dictionary.find(key);
  return found != dictionary.end() && !found->is_null();
}

bool has_factor_without_type(const json& dictionary) {
  return dictionary.is_object() && is_given(dictionary, "factor") &&
         !is_given(dictionary, "rope_type") && !is_given(dictionary, "type");
}

}  // namespace

std::vector<std::string> model_warnings(const json& config) {
  std::vector<std::string> warnings;
  if (!config.is_object())
    return warnings;
  const auto check = [&](const json& dictionary, const std::string& name) {
    if (has_factor_without_type(dictionary))
      warnings.push_back(fmt::format(
          "the model's {} has a factor but no rope_type, so it means nothing, "
          "as in transformers: say \"rope_type\": \"linear\", or leave it out",
          name));
  };
  for (const std::string key : {"rope_scaling", "rope_parameters"}) {
    if (!config.contains(key))
      continue;
    check(config[key], key);
    // Where layers differ, there is one dictionary per type of layer.
    for (const std::string& type : choice_texts<LayerType>()) {
      if (config[key].is_object() && config[key].contains(type))
        check(config[key][type], fmt::format("{}.{}", key, type));
    }
  }
  return warnings;
}

}  // namespace brigade
