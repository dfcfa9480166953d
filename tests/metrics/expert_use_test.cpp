#include "brigade/metrics/expert_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "brigade/metrics/metrics.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

ExpertUse layer_of(std::vector<int64_t> rows) {
  return {.layer = 2, .rows = std::move(rows), .router_norm = 0.5};
}

TEST(ExpertUse, IsOneWhereEvenAndAtItsWorstWhereOneExpertGetsAll) {
  EXPECT_DOUBLE_EQ(layer_of({5, 5, 5, 5}).max_over_mean(), 1);
  EXPECT_DOUBLE_EQ(layer_of({5, 5, 5, 5}).entropy(), 1);
  EXPECT_DOUBLE_EQ(layer_of({0, 20, 0, 0}).max_over_mean(), 4);
  EXPECT_DOUBLE_EQ(layer_of({0, 20, 0, 0}).entropy(), 0);
  EXPECT_EQ(layer_of({0, 20, 0, 0}).dead(), 3);
}

TEST(ExpertUse, FollowsTheFormulaForHalvesAndQuarters) {
  // 1/2, 1/4, 1/4, 0: 3/2 bits of 2.
  EXPECT_DOUBLE_EQ(layer_of({8, 4, 4, 0}).entropy(), 0.75);
  EXPECT_DOUBLE_EQ(layer_of({8, 4, 4, 0}).max_over_mean(), 2);
}

TEST(ExpertUse, IsEvenWithoutTokensOrWithOneExpert) {
  EXPECT_DOUBLE_EQ(layer_of({0, 0}).entropy(), 1);
  EXPECT_DOUBLE_EQ(layer_of({0, 0}).max_over_mean(), 1);
  EXPECT_DOUBLE_EQ(layer_of({7}).entropy(), 1);
}

TEST(ExpertUse, TheWorstLayerIsShownWhereOneNumberIs) {
  ExpertUse even = layer_of({6, 6});
  even.router_norm = 3;
  const WorstExpertUse worst = worst_of({even, layer_of({12, 0})});
  EXPECT_DOUBLE_EQ(worst.max_over_mean, 2);
  EXPECT_DOUBLE_EQ(worst.entropy, 0);
  EXPECT_EQ(worst.dead, 1);
  EXPECT_DOUBLE_EQ(worst.router_norm, 3);
}

TEST(ExpertUse, IsInALineOfMetricsWithRowsOnRequest) {
  StepMetrics metrics;
  metrics.experts = {layer_of({6, 2}), layer_of({4, 4})};
  const auto json = nlohmann::json::parse(to_json_line(metrics))["experts"];
  EXPECT_EQ(
      json.dump(),
      R"({"dead":[0,0],"dropped":0,"entropy":[0.8112781244591328,1.0],)"
      R"("layers":[2,2],"max_over_mean":[1.5,1.0],"router_norm":[0.5,0.5],)"
      R"("tokens_per_expert":[[6,2],[4,4]]})");
  const std::string without = to_json_line(metrics, ExpertRows::kLeaveOut);
  EXPECT_FALSE(
      nlohmann::json::parse(without)["experts"].contains("tokens_per_expert"));
  EXPECT_FALSE(nlohmann::json::parse(to_json_line({})).contains("experts"));
}

TEST(ExpertUse, RowsOfManyExpertsStandInFewLines) {
  const auto lines_with_rows = [](size_t layers, size_t experts) {
    const std::vector<ExpertUse> uses(
        layers, layer_of(std::vector<int64_t>(experts, 1)));
    std::vector<int64_t> lines;
    for (int64_t line = 1; line <= 50; ++line) {
      if (rows_in_line(uses, line) == ExpertRows::kSay)
        lines.push_back(line);
    }
    return lines;
  };
  EXPECT_EQ(lines_with_rows(32, 8).size(), 50U);
  EXPECT_EQ(lines_with_rows(33, 8).size(), 25U);
  EXPECT_EQ(lines_with_rows(48, 128), (std::vector<int64_t>{1, 25, 49}));
  EXPECT_EQ(rows_in_line({}, 7), ExpertRows::kSay);
}

TEST(IdleExperts, OneThatGetsNothingForLongIsNamedOnce) {
  IdleExperts idle;
  for (int64_t step = 1; step < IdleExperts::kSteps; ++step)
    EXPECT_THAT(idle.add(step, {layer_of({4, 0})}), IsEmpty());
  EXPECT_THAT(
      idle.add(100, {layer_of({4, 0})}),
      ElementsAre(StartsWith("step 100: expert 1 of layer 2 got no token in "
                             "the last 100 steps")));
  EXPECT_THAT(idle.add(101, {layer_of({4, 0})}), IsEmpty());
}

TEST(IdleExperts, ATokenRestartsTheCount) {
  IdleExperts idle;
  for (int64_t step = 1; step <= 2 * IdleExperts::kSteps; ++step)
    EXPECT_THAT(
        idle.add(step, {layer_of({4, step % 99 == 0 ? 1 : 0})}), IsEmpty());
}

}  // namespace
}  // namespace brigade
