#include "brigade/metrics/metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace brigade {
namespace {

TEST(MetricsTest, BucketsAreToldInMillisecondsSinceBackwardBegan) {
  SyncReport report;
  report.backward_begin_ns = 5'000'000;
  BucketTiming bucket;
  bucket.index = 3;
  bucket.bytes = 4096;
  bucket.ready_ns = 6'000'000;
  bucket.launched_ns = 7'500'000;
  bucket.finished_ns = 11'000'000;
  bucket.wait_begin_ns = 10'000'000;
  bucket.wait_end_ns = 11'250'000;
  report.buckets = {bucket};
  StepMetrics metrics;
  metrics.reports = {report, report};
  const auto json = nlohmann::json::parse(to_json_line(metrics));
  ASSERT_EQ(json.at("buckets").size(), 2U);
  const auto& told = json["buckets"][1];
  EXPECT_EQ(told["bucket"], 3);
  EXPECT_EQ(told["bytes"], 4096);
  EXPECT_EQ(told["ready_ms"], 1.0);
  EXPECT_EQ(told["launched_ms"], 2.5);
  EXPECT_EQ(told["finished_ms"], 6.0);
  EXPECT_EQ(told["waited_ms"], 1.25);
}

TEST(MetricsTest, WithoutAReportThereAreNoBuckets) {
  EXPECT_FALSE(nlohmann::json::parse(to_json_line({})).contains("buckets"));
}

}  // namespace
}  // namespace brigade
