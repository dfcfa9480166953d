#include "brigade/schedule/bucket_prediction.h"

#include <gtest/gtest.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

// `count` parameters of 64 floats: 256 bytes each.
std::vector<BucketParam> equal_params(int count) {
  std::vector<BucketParam> params;
  for (int i = 0; i < count; ++i)
    params.push_back({.name = std::to_string(i), .numel = 64});
  return params;
}

BucketPlan one_bucket_each(int count) {
  return plan_buckets(
      equal_params(count),
      initial_order(BucketOrder::kReverse, count),
      {.capacity_bytes = 256, .first_bucket_bytes = 256});
}

// Backward makes the last parameter ready after `gap`, the first at the end.
BackwardTimeline evenly(int count, double gap) {
  BackwardTimeline timeline;
  for (int i = 0; i < count; ++i)
    timeline.ready_ns.push_back(gap * (count - i));
  timeline.end_ns = gap * count;
  return timeline;
}

TEST(BucketPredictionTest, AnExactLineIsFittedExactly) {
  std::vector<AllReduceSample> samples;
  for (const int64_t bytes : {1000, 50'000, 4'000'000})
    samples.push_back({bytes, 7000 + 0.25 * static_cast<double>(bytes)});
  const AllReduceCost cost = fit_all_reduce_cost(samples);
  EXPECT_NEAR(cost.latency_ns, 7000, 1e-3);
  EXPECT_NEAR(cost.ns_per_byte, 0.25, 1e-9);
  EXPECT_NEAR(cost.time_ns(100), 7025, 1e-3);
}

TEST(BucketPredictionTest, ANegativeLatencyBecomesALineThroughTheOrigin) {
  // y = 3x - 1 at x = 1 and 2; through the origin, relative errors:
  // b = sum(x / y) / sum(x^2 / y^2) = (1/2 + 2/5) / (1/4 + 4/25).
  const std::vector<AllReduceSample> samples{{1, 2}, {2, 5}};
  const AllReduceCost cost = fit_all_reduce_cost(samples);
  EXPECT_EQ(cost.latency_ns, 0);
  EXPECT_NEAR(cost.ns_per_byte, 0.9 / 0.41, 1e-12);
}

TEST(BucketPredictionTest, OneSizeOrNoTimeCannotBeFitted) {
  const std::vector<AllReduceSample> same{{8, 1}, {8, 2}};
  EXPECT_THROW(fit_all_reduce_cost(same), UsageError);
  const std::vector<AllReduceSample> zero{{8, 0}, {16, 2}};
  EXPECT_THROW(fit_all_reduce_cost(zero), UsageError);
  EXPECT_THROW(fit_all_reduce_cost({}), UsageError);
}

TEST(BucketPredictionTest, OnlyTheLastBucketIsExposedWhenBackwardIsSlower) {
  // Each takes 10 + 256 < 1000.
  const auto prediction =
      predict_exposure(one_bucket_each(5), evenly(5, 1000), {10, 1});
  EXPECT_DOUBLE_EQ(prediction.communication_ns, 5 * 266);
  EXPECT_DOUBLE_EQ(prediction.exposed_ns, 266);
  EXPECT_DOUBLE_EQ(prediction.end_ns, 5266);
}

TEST(BucketPredictionTest, ASlowNetworkIsBusyFromTheFirstBucketOn) {
  // Each takes 2560: begins at 1000, then back to back.
  const auto prediction =
      predict_exposure(one_bucket_each(5), evenly(5, 1000), {0, 10});
  EXPECT_DOUBLE_EQ(prediction.end_ns, 1000 + 5 * 2560);
  EXPECT_DOUBLE_EQ(prediction.exposed_ns, 1000 + 5 * 2560 - 5000);
}

TEST(BucketPredictionTest, AFullBucketWaitsForTheOneBeforeItInThePlan) {
  // Parameter 0, last in the plan, is ready first and gains nothing.
  const auto prediction =
      predict_exposure(one_bucket_each(2), {{1.0, 900.0}, 1000.0}, {100, 0});
  EXPECT_DOUBLE_EQ(prediction.end_ns, 900 + 2 * 100);
  EXPECT_DOUBLE_EQ(prediction.exposed_ns, 100);
}

TEST(BucketPredictionTest, ABucketIsFullWhenItsLatestParameterIsReady) {
  // One bucket of parameters 2, 1, 0; the middle one comes last.
  const auto plan = plan_buckets(
      equal_params(3), initial_order(BucketOrder::kReverse, 3), {});
  ASSERT_EQ(plan.buckets.size(), 1U);
  const auto prediction =
      predict_exposure(plan, {{5.0, 700.0, 3.0}, 1000.0}, {400, 0});
  EXPECT_DOUBLE_EQ(prediction.end_ns, 1100);
}

TEST(BucketPredictionTest, CommunicationThatEndsInTimeIsNotExposed) {
  const auto prediction =
      predict_exposure(one_bucket_each(1), {{100.0}, 1000.0}, {100, 0});
  EXPECT_EQ(prediction.exposed_ns, 0);
}

TEST(BucketPredictionTest, LatencyFavoursLargeBucketsBandwidthSmallOnes) {
  const auto exposed_ns =
      [](int64_t capacity, double each, AllReduceCost cost) {
        const auto plan = plan_buckets(
            equal_params(8),
            initial_order(BucketOrder::kReverse, 8),
            {.capacity_bytes = capacity, .first_bucket_bytes = 256});
        return predict_exposure(plan, evenly(8, each), cost).exposed_ns;
      };
  EXPECT_LT(exposed_ns(2048, 10, {1000, 0}), exposed_ns(256, 10, {1000, 0}));
  EXPECT_LT(exposed_ns(256, 1000, {0, 1}), exposed_ns(2048, 1000, {0, 1}));
}

TEST(BucketPredictionTest, ATimelineWithoutAParameterIsRefused) {
  EXPECT_THROW(
      predict_exposure(one_bucket_each(2), {{1.0}, 2.0}, {}), UsageError);
}

}  // namespace
}  // namespace brigade
