// Worlds of processes, as a launcher starts them.
#include "brigade/comm/world.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/free_port.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

using Variables = std::map<std::string, std::string>;

float sum_of_ranks(const World& world) {
  auto rank = torch::full({5}, world.rank() + 1, torch::kFloat);
  world.data_parallel()->all_reduce(rank)->wait();
  auto all = torch::zeros({world.size()});
  world.data_parallel()->all_gather(all, rank.narrow(0, 0, 1))->wait();
  return all.mean().item<float>();
}

// The body of a rank's process: a world, a second one beside it, one after
// both, and one that begins where a rank has ended the earlier ones first.
TEST(RankOfWorlds, DISABLED_MeetsSeveralTimes) {
  auto first = std::make_optional(init_from_environment());
  EXPECT_EQ(sum_of_ranks(*first), 3);
  auto second = std::make_optional(
      init_from_environment({.timeout = std::chrono::hours(24)}));
  EXPECT_EQ(sum_of_ranks(*second), 3);
  EXPECT_EQ(sum_of_ranks(*first), 3);
  if (first->rank() == 0) {
    first.reset();
    second.reset();
  }
  auto third = std::make_optional(init_from_environment());
  EXPECT_EQ(sum_of_ranks(*third), 3);
  first.reset();
  second.reset();
  third.reset();
  EXPECT_EQ(sum_of_ranks(init_from_environment()), 3);
}

void expect_ranks_meet_several_times(const Variables& store) {
  std::vector<std::unique_ptr<testing::StartedProgram>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    Variables variables{
        {"RANK", std::to_string(rank)},
        {"WORLD_SIZE", "2"},
        {"LOCAL_RANK", std::to_string(rank)},
        {"LOCAL_WORLD_SIZE", "2"},
        {"GTEST_TOTAL_SHARDS", "1"},
        {"GTEST_SHARD_INDEX", "0"}};
    variables.insert(store.begin(), store.end());
    ranks.push_back(std::make_unique<testing::StartedProgram>(
        std::filesystem::read_symlink("/proc/self/exe"),
        std::vector<std::string>{
            "--gtest_filter=RankOfWorlds.DISABLED_MeetsSeveralTimes",
            "--gtest_also_run_disabled_tests",
            "--gtest_output="},
        variables));
  }
  for (const auto& rank : ranks) {
    const auto result = rank->wait();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
}

TEST(InitFromEnvironment, MayBeCalledAgainWithAFile) {
  const testing::RunsFolder folder;
  expect_ranks_meet_several_times(
      {{"BRIGADE_STORE_FILE", (folder / "store").string()}});
}

TEST(InitFromEnvironment, MayBeCalledAgainWithAServerOnRank0) {
  const testing::FreePort port;
  expect_ranks_meet_several_times(
      {{"MASTER_ADDR", "127.0.0.1"},
       {"MASTER_PORT", std::to_string(port.number())}});
}

}  // namespace
}  // namespace brigade
