#include "brigade/train/replica_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;

// Tensors that are equal on all ranks except for one bit where is_flipped.
std::vector<State> replicas_with_flip(
    bool is_flipped,
    torch::ScalarType dtype) {
  std::vector<State> replicas = {
      {"a", torch::arange(15, torch::kFloat).sin().to(dtype)},
      {"b", torch::arange(8, torch::kFloat).view({4, 2}).cos().to(dtype)}};
  if (is_flipped) {
    auto bits = replicas[1].tensor.view(
        dtype == torch::kFloat ? torch::kInt : torch::kShort);
    bits[2][1].bitwise_xor_(1);
  }
  return replicas;
}

class ReplicaCheck : public ::testing::TestWithParam<torch::ScalarType> {};

TEST_P(ReplicaCheck, FindsNothingWhereAllBitsAreEqual) {
  testing::run_ranks(3, [](const CommunicatorPtr& world) {
    EXPECT_FALSE(
        find_unlike_replica(replicas_with_flip(false, GetParam()), *world));
  });
}

TEST_P(ReplicaCheck, NamesTheTensorAndTheRankOfAFlippedBit) {
  testing::run_ranks(3, [](const CommunicatorPtr& world) {
    const auto found = find_unlike_replica(
        replicas_with_flip(world->rank() == 1, GetParam()), *world);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->name, "b");
    EXPECT_THAT(found->ranks, ElementsAre(1));
  });
}

TEST_P(ReplicaCheck, CannotTellWhichOfTwoIsRight) {
  testing::run_ranks(2, [](const CommunicatorPtr& world) {
    const auto found = find_unlike_replica(
        replicas_with_flip(world->rank() == 1, GetParam()), *world);
    ASSERT_TRUE(found);
    EXPECT_THAT(found->ranks, ElementsAre(0, 1));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    ReplicaCheck,
    ::testing::Values(torch::kFloat, torch::kBFloat16),
    [](const auto& each) { return std::string(c10::toString(each.param)); });

}  // namespace
}  // namespace brigade
