#include "brigade/doctor/layout_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "brigade/doctor/machine_facts.h"
#include "brigade/doctor/rates.h"
#include "tests/support/program.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;

TEST(LayoutsOf, AreEveryProductOfSizes) {
  EXPECT_EQ(layouts_of(1).size(), 1U);
  EXPECT_EQ(layouts_of(2).size(), 4U);   // one axis each
  EXPECT_EQ(layouts_of(4).size(), 10U);  // and six pairs
  for (const int ranks : {1, 2, 3, 4, 6, 8}) {
    for (const ParallelDims& dims : layouts_of(ranks)) {
      EXPECT_EQ(dims.world_size(), ranks);
      EXPECT_LE(dims.tp, 4);
      EXPECT_LE(dims.pp, 4);
    }
  }
}

LaunchEnvironment local_rank_of_two(int rank) {
  LaunchEnvironment environment;
  environment.rank = environment.local_rank = rank;
  environment.world_size = environment.local_world_size = 2;
  environment.launcher = "brigade";
  return environment;
}

TEST(LayoutCheck, FindsEveryLayoutOfTwoRanksGood) {
  const testing::RunsFolder folder;
  write_layout_check_data(folder / "");
  std::mutex mutex;
  std::vector<std::string> names;
  testing::run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
    check_layouts(
        local_rank_of_two(rank),
        store,
        folder / "",
        [&](const LayoutDifference& each) {
          const std::lock_guard lock(mutex);
          if (rank == 0)
            names.push_back(each.layout);
          EXPECT_TRUE(each.is_good()) << each.layout << " " << each.loss << " "
                                      << each.grad_norm << " " << each.failure;
        });
  });
  EXPECT_THAT(
      names,
      ElementsAre(
          "dp2",
          "dp2 zero1",
          "dp2 zero2",
          "dp2 zero3",
          "cp2",
          "pp2",
          "tp2",
          "dp2 zero1 ep2"));
}

TEST(LayoutDifference, IsGoodWithinTheToleranceAlone) {
  LayoutDifference each;
  EXPECT_TRUE(each.is_good());
  each.loss = 2 * LayoutDifference::kTolerance;
  EXPECT_FALSE(each.is_good());
  each.loss = 0;
  each.grad_norm = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(each.is_good());
  each.grad_norm = 0;
  each.failure = "no";
  EXPECT_FALSE(each.is_good());
}

TEST(MachineFacts, NameTheProcessorAndLibtorch) {
  const auto facts = machine_facts();
  for (const char* name : {"processor", "libtorch", "BLAS", "GPUs"})
    EXPECT_TRUE(std::any_of(facts.begin(), facts.end(), [&](const auto& fact) {
      return fact.name == name && !fact.value.empty();
    })) << name;
}

TEST(MachineFacts, MeasureADisk) {
  const testing::RunsFolder folder;
  EXPECT_GT(disk_bytes_per_s(folder / "", 1 << 20), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  std::ofstream(folder / "doctor.tmp") << "a user's";
  EXPECT_GT(disk_bytes_per_s(folder / "", 1 << 20), 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "doctor.tmp"));
}

TEST(GroupRate, IsMeasuredByAllRanks) {
  testing::run_ranks(2, [](const CommunicatorPtr& world) {
    const GroupRate rate = measure_group(*world, 1 << 16);
    EXPECT_GT(rate.latency_us, 0);
    EXPECT_GT(rate.all_reduce_gb_per_s, 0);
    EXPECT_GT(rate.exchange_gb_per_s, 0);
  });
}

}  // namespace
}  // namespace brigade
