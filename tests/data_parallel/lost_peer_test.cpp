// A peer that is lost in the middle of a bucket, in real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "brigade/base/error.h"
#include "brigade/comm/world.h"
#include "brigade/data_parallel/data_parallel.h"
#include "brigade/metrics/clock.h"
#include "tests/support/program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kTimeoutSeconds = 3;

// Starts both ranks as processes without a supervisor, which would end the
// survivor; returns what became of rank 0.
testing::ProgramResult run_with_lost_peer(const std::string& how) {
  const testing::RunsFolder folder;
  const std::string self = fs::read_symlink("/proc/self/exe");
  std::vector<std::unique_ptr<testing::StartedProgram>> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<testing::StartedProgram>(
        self,
        testing::Arguments{
            "--gtest_filter=RankWhosePeerIsLost.DISABLED_InTheSecondStep",
            "--gtest_also_run_disabled_tests",
            "--gtest_output="},
        std::map<std::string, std::string>{
            {"RANK", std::to_string(rank)},
            {"WORLD_SIZE", "2"},
            {"LOCAL_RANK", std::to_string(rank)},
            {"LOCAL_WORLD_SIZE", "2"},
            {"BRIGADE_STORE_FILE", (folder / "store").string()},
            {"LOST_PEER_HOW", how},
            {"LOST_PEER_OVER", (folder / "over").string()},
            {"GTEST_TOTAL_SHARDS", "1"},
            {"GTEST_SHARD_INDEX", "0"}}));
  }
  auto result = ranks[0]->wait();
  testing::write_file(folder / "over", "");
  ranks[1]->wait();
  return result;
}

void expect_named(const testing::ProgramResult& result) {
  EXPECT_EQ(result.exit_code, 3) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("bucket 1 of 2 (weight, "));
  EXPECT_THAT(result.out, HasSubstr("all_reduce #"));
  EXPECT_THAT(
      result.out, HasSubstr("in group 'world' failed on rank 0 (dp 0)"));
  EXPECT_THAT(result.out, HasSubstr("rank 1 (dp 1) did not report"));
}

TEST(LostPeer, OneThatDiesIsACommErrorNamingBucketGroupAndRank) {
  expect_named(run_with_lost_peer("dies"));
}

TEST(LostPeer, OneThatStallsIsACommErrorWithinTheTimeout) {
  const int64_t begin_ns = steady_now_ns();
  expect_named(run_with_lost_peer("stalls"));
  // Starting, the timeout, and asking who else failed.
  EXPECT_LT(steady_now_ns() - begin_ns, (kTimeoutSeconds + 12) * 1000000000LL);
}

void wait_for(const fs::path& file) {
  while (!fs::exists(file))
    ::usleep(1000);
}

// What each of the two processes runs.
TEST(RankWhosePeerIsLost, DISABLED_InTheSecondStep) {
  const World world =
      init_from_environment({.timeout = std::chrono::seconds(kTimeoutSeconds)});
  const std::string how = std::getenv("LOST_PEER_HOW");
  const fs::path over = std::getenv("LOST_PEER_OVER");
  const fs::path first_over = over.string() + ".first_bucket";
  int launches = 0;
  WorkPtr last;
  GradSyncOptions options;
  options.bucket_capacity_bytes = 256;
  options.hook = [&](BucketView& bucket, Communicator& group) {
    const bool is_time = ++launches == 4;  // the second step's second bucket
    if (is_time) {
      last->wait();  // the first is over, and that on both ranks
      if (world.rank() == 0)
        testing::write_file(first_over, "");
      else
        wait_for(first_over);
    }
    if (world.rank() == 1 && is_time) {
      if (how == "dies")
        ::raise(SIGKILL);
      wait_for(over);
      ::_exit(0);
    }
    return last = group.all_reduce(bucket.main_grad);
  };
  try {
    DataParallel model(torch::nn::Linear(8, 8), world.data_parallel(), options);
    for (int step = 0; step < 2; ++step) {
      model->forward(torch::ones({1, 8})).sum().backward();
      model.reset();
    }
  } catch (const CommError& error) {
    std::printf("%s\n", error.what());
    std::fflush(stdout);
    ::_exit(3);
  }
  ::_exit(0);
}

}  // namespace
}  // namespace brigade
