#include "brigade/generate/inference_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "brigade/base/error.h"

namespace brigade {
namespace {

constexpr std::array<std::string_view, 8> kKeys = {
    "model.dtype",
    "distributed.dp_size",
    "distributed.tp_size",
    "distributed.pp_size",
    "distributed.cp_size",
    "distributed.pp_layers",
    "distributed.timeout_seconds",
    "distributed.check_collectives"};

void check_keys(const std::vector<ConfigOverride>& overrides) {
  std::vector<std::string> problems;
  for (const ConfigOverride& override : overrides) {
    const auto key =
        std::string_view(override.text).substr(0, override.text.find('='));
    if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
      problems.push_back(fmt::format(
          "'{}' means nothing here, where nothing is trained; what can be "
          "given: {}",
          override.text,
          fmt::join(kKeys, ", ")));
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
