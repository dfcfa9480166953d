#include "brigade/optim/optimizer_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/comm/self_communicator.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/adamw.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;

// Four parameters of 100, 3, 5 and 64 elements, in one bucket or one each.
std::unique_ptr<GradSync> make_sync(int64_t capacity_bytes) {
  std::vector<Param> params;
  for (const int64_t numel : {100, 3, 5, 64}) {
    params.push_back(
        {"p" + std::to_string(numel),
         torch::full({numel}, static_cast<double>(numel)).requires_grad_()});
  }
  GradSyncOptions options;
  options.handover = GradHandover::kMainGrad;
  options.finish = FinishMode::kExplicit;
  options.order = BucketOrder::kRegistration;
  options.bucket_capacity_bytes = capacity_bytes;
  return std::make_unique<BucketedGradSync>(
      params, make_self_communicator({.name = "dp"}), options);
}

// The decays of two parameter groups, by parameter of make_sync().
const std::vector<int> kTwoGroups = {0, 1, 1, 0};
const std::vector<StepRule> kDecays = {{.weight_decay = 0.1}, {}};

// Every element of the segments lies in exactly one group, in order.
void expect_groups_cover_segments(
    const GradSync& sync,
    const std::vector<OptimizerGroup>& made) {
  size_t group = 0;
  for (const FlatSegment& segment : sync.segments()) {
    int64_t at = 0;
    while (at < segment.main_grad.numel()) {
      ASSERT_LT(group, made.size());
      const OptimizerGroup& part = made[group++];
      EXPECT_EQ(
          part.main_grad.data_ptr<float>(),
          segment.main_grad.data_ptr<float>() + at);
      EXPECT_EQ(
          part.weight.data_ptr<float>(), segment.weight.data_ptr<float>() + at);
      EXPECT_EQ(part.weight.numel(), part.main_grad.numel());
      at += part.main_grad.numel();
    }
    EXPECT_EQ(at, segment.main_grad.numel());
  }
  EXPECT_EQ(group, made.size());
}

TEST(OptimizerGroups, NeighboursInOneGroupAreSteppedAsOne) {
  const auto sync = make_sync(1 << 20);
  const auto made = make_optimizer_groups(*sync, kTwoGroups, kDecays);
  std::vector<double> decays;
  std::vector<int> param_groups;
  for (const OptimizerGroup& group : made) {
    decays.push_back(group.rule.weight_decay);
    param_groups.push_back(group.param_group);
  }
  EXPECT_THAT(decays, ElementsAre(0.1, 0.0, 0.1));
  EXPECT_THAT(param_groups, ElementsAre(0, 1, 0));
  expect_groups_cover_segments(*sync, made);
}

TEST(OptimizerGroups, OneGroupForAllIsOnePerBucket) {
  for (const int64_t capacity_bytes : {64, 1 << 20}) {
    const auto sync = make_sync(capacity_bytes);
    const auto made =
        make_optimizer_groups(*sync, {0, 0, 0, 0}, {{.weight_decay = 0.1}});
    EXPECT_EQ(made.size(), sync->segments().size());
    expect_groups_cover_segments(*sync, made);
  }
}

TEST(OptimizerGroups, AParameterInNoGroupIsInNone) {
  const auto sync = make_sync(64);  // each has its bucket
  const auto made = make_optimizer_groups(
      *sync, {kNoGroup, 0, kNoGroup, 0}, {{.weight_decay = 0.1}});
  ASSERT_EQ(made.size(), 2U);
  EXPECT_EQ(made[0].weight.data_ptr(), sync->params()[1].tensor.data_ptr());
  EXPECT_EQ(made[1].weight.data_ptr(), sync->params()[3].tensor.data_ptr());
  EXPECT_TRUE(make_optimizer_groups(*sync, {-1, -1, -1, -1}, {}).empty());
}

// Without gradients a step multiplies decaying weights by 1 - rate * decay and
// leaves the others.
TEST(OptimizerGroups, OnlyWhatDecaysShrinksWithoutAGradient) {
  const auto sync = make_sync(1 << 20);
  AdamW(
      make_optimizer_groups(*sync, {0, 1, 0, 1}, {{.weight_decay = 0.5}, {}}),
      {})
      .step(0.1);
  const auto value = [&](size_t i) {
    return sync->params()[i].tensor.select(0, 0).item<float>();
  };
  EXPECT_FLOAT_EQ(value(0), 100 * 0.95F);
  EXPECT_EQ(value(1), 3.0F);
  EXPECT_FLOAT_EQ(value(2), 5 * 0.95F);
  EXPECT_EQ(value(3), 64.0F);
}

}  // namespace
}  // namespace brigade
