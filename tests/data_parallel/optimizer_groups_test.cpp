#include "brigade/data_parallel/optimizer_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/comm/self_communicator.h"
#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/adamw.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;

// Four parameters of 100, 3, 5 and 64 elements in one bucket, or each in its
// own.
std::unique_ptr<GradSync> make_sync(int64_t capacity_bytes) {
  std::vector<NamedParam> params;
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

// One decay per parameter of make_sync().
OptimizerGroups groups_of(
    const GradSync& sync,
    const std::vector<double>& decay) {
  return make_optimizer_groups(sync, [&](const Param& param) {
    return decay.at(static_cast<size_t>(sync.param_index(param.name)));
  });
}

std::vector<double> decays_of(const OptimizerGroups& groups) {
  std::vector<double> decays;
  for (const OptimizerGroup& group : groups.groups)
    decays.push_back(group.weight_decay);
  return decays;
}

// Every element of the segments lies in exactly one group, in order.
void expect_groups_cover_segments(
    const GradSync& sync,
    const OptimizerGroups& made) {
  size_t group = 0;
  for (const GradSegment& segment : sync.segments()) {
    int64_t at = 0;
    while (at < segment.main_grad.numel()) {
      ASSERT_LT(group, made.groups.size());
      const OptimizerGroup& part = made.groups[group++];
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
  EXPECT_EQ(group, made.groups.size());
}

void expect_places_are_the_parameters(
    const GradSync& sync,
    const OptimizerGroups& made,
    const std::vector<double>& decay) {
  for (size_t i = 0; i < made.places.size(); ++i) {
    const auto& place = made.places[i];
    const OptimizerGroup& group = made.groups.at(place.group);
    EXPECT_EQ(group.weight_decay, decay[i]) << i;
    EXPECT_TRUE(torch::equal(
        group.weight.narrow(0, place.offset_numel, place.numel),
        sync.params()[i].tensor.detach()))
        << i;
  }
}

TEST(OptimizerGroups, NeighboursWithOneDecayAreOneGroup) {
  const auto sync = make_sync(1 << 20);
  const std::vector<double> decay = {0.1, 0.0, 0.0, 0.1};
  const OptimizerGroups made = groups_of(*sync, decay);
  EXPECT_THAT(decays_of(made), ElementsAre(0.1, 0.0, 0.1));
  expect_groups_cover_segments(*sync, made);
  expect_places_are_the_parameters(*sync, made, decay);
}

TEST(OptimizerGroups, OneDecayForAllMakesOneGroupPerBucket) {
  for (const int64_t capacity_bytes : {64, 1 << 20}) {
    const auto sync = make_sync(capacity_bytes);
    const std::vector<double> decay(4, 0.1);
    const OptimizerGroups made = groups_of(*sync, decay);
    EXPECT_EQ(made.groups.size(), sync->segments().size());
    expect_groups_cover_segments(*sync, made);
    expect_places_are_the_parameters(*sync, made, decay);
  }
}

// Without gradients a step multiplies weights that decay by 1 - rate * decay
// and leaves the others.
TEST(OptimizerGroups, OnlyWhatDecaysShrinksWithoutAGradient) {
  const auto sync = make_sync(1 << 20);
  OptimizerGroups made = groups_of(*sync, {0.5, 0.0, 0.5, 0.0});
  AdamW(std::move(made.groups), {}).step(0.1);
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
