#include "brigade/generate/inference_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "brigade/base/error.h"

namespace brigade {
namespace {

std::vector<std::string> known_keys() {
  std::vector<std::string> keys = {"model.dtype"};
  for (const Axis axis : kNamedAxes)
    keys.push_back("distributed." + size_key_of(axis));
  keys.insert(
      keys.end(),
      {"distributed.ep_size",
       "distributed.pp_layers",
       "distributed.timeout_seconds",
       "distributed.check_collectives"});
  return keys;
}

void check_keys(const std::vector<ConfigOverride>& overrides) {
  const std::vector<std::string> keys = known_keys();
  std::vector<std::string> problems;
  for (const ConfigOverride& override : overrides) {
    const auto key =
        std::string_view(override.text).substr(0, override.text.find('='));
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      problems.push_back(fmt::format(
          "'{}' means nothing here, where nothing is trained; what can be "
          "given: {}",
          override.text,
          fmt::join(keys, ", ")));
  }
  if (!problems.empty())
    throw ConfigError(problems);
}

}  // namespace

TrainConfig inference_config(
    const StoredModel& stored,
    const std::vector<ConfigOverride>& overrides,
    int world_size) {
  check_keys(overrides);
  // Text has neither a fixed length nor micro-batches: numbers that suit every
  // layout of these ranks, so that they refuse none.
  const nlohmann::json config = {
      {"model", {{"config", stored.config()}, {"dtype", stored.dtype()}}},
      {"training",
       {{"seq_length", int64_t{2} * world_size},
        {"gradient_accumulation_steps", world_size}}},
      {"dataset", {{"name", "none"}}}};
  return parse_train_config(
             config.dump(),
             {.path = stored.directory(),
              .overrides = overrides,
              .world_size = world_size,
              .find_model = {}})
      .config;
}

}  // namespace brigade
