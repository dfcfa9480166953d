// The configs in examples/ load as `brigade train --config` loads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/files/file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

TrainConfig load_example(
    const std::string& name,
    const std::vector<ConfigOverride>& overrides = {},
    int world_size = 1) {
  LoadedConfig loaded = load_train_config(
      {.path = fs::path(BRIGADE_SOURCE_DIR) / "examples" / name,
       .overrides = overrides,
       .world_size = world_size});
  EXPECT_THAT(loaded.ignored, ::testing::IsEmpty()) << name;
  return std::move(loaded.config);
}

TEST(Examples, EveryConfigOfARunLoads) {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(BRIGADE_SOURCE_DIR) / "examples")) {
    if (entry.path().extension() == ".json" &&
        nlohmann::json::parse(read_text_file(entry.path()))
            .contains("training"))
      names.push_back(entry.path().filename());
  }
  EXPECT_THAT(
      names,
      ::testing::IsSupersetOf(
          {"experts.json",
           "jargon_chat.json",
           "lora.json",
           "quickstart.json"}));
  for (const std::string& name : names)
    EXPECT_NO_THROW(load_example(name)) << name;
}

TEST(Examples, ExpertsAreDividedAmongRanks) {
  const TrainConfig config =
      load_example("experts.json", {{"distributed.ep_size=4"}}, 4);
  EXPECT_EQ(config.distributed.dims.ep, 4);
  ASSERT_TRUE(config.model.decoder && config.model.decoder->experts);
  EXPECT_EQ(config.model.decoder->experts->num_experts, 8);
}

}  // namespace
}  // namespace brigade
