#include "brigade/comm/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/comm/backend.h"
#include "tests/support/message_of.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string problem_of(const Gpus& gpus, int local_rank, int local_ranks) {
  LaunchEnvironment environment;
  environment.rank = 8 + local_rank;
  environment.local_rank = local_rank;
  environment.local_world_size = local_ranks;
  return message_of<ConfigError>([&] { check_gpus(gpus, environment); });
}

TEST(Gpus, EachRankOfAHostHasItsOwn) {
  const Gpus two{.count = 2, .missing = ""};
  EXPECT_EQ(problem_of(two, 0, 2), "");
  EXPECT_EQ(problem_of(two, 1, 2), "");
  EXPECT_THAT(
      problem_of(two, 2, 3),
      AllOf(
          HasSubstr("rank 10 is number 2 of 3 ranks on its host"),
          HasSubstr("sees 2 GPUs there: start at most as many ranks")));
}

TEST(Gpus, SaysWhyThereAreNone) {
  EXPECT_THAT(
      problem_of({.count = 0, .missing = "the driver is too old"}, 0, 1),
      HasSubstr("[device] the driver is too old"));
}

// Holds in any build, with and without GPUs.
TEST(Gpus, AreThereOrMissingForAReason) {
  const Gpus gpus = find_gpus();
  EXPECT_EQ(gpus.count == 0, !gpus.missing.empty()) << gpus.missing;
  EXPECT_EQ(reserved_gpu_memory_gb(torch::kCPU), 0);
}

TEST(Gpus, ARankOfNcclTakesThatOfItsNumberOnTheHost) {
  LaunchEnvironment environment;
  environment.rank = 5;
  environment.local_rank = 1;
  EXPECT_EQ(
      device_of(Backend::kNccl, environment), torch::Device(torch::kCUDA, 1));
  EXPECT_EQ(device_of(Backend::kGloo, environment), torch::kCPU);
}

}  // namespace
}  // namespace brigade
