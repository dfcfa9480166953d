#include "brigade/metrics/metrics.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace brigade {
namespace {

TEST(MetricsTest, BucketsAreInMillisecondsSinceBackwardBegan) {
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

TEST(MetricsTest, PartsOfAStepAreInMilliseconds) {
  StepMetrics metrics;
  metrics.times = {
      .data_ms = 1,
      .compute_ms = 2,
      .gradients_ms = 6,
      .norm_ms = 7,
      .optimizer_ms = 8};
  metrics.times[Axis::kTp] = 3;
  metrics.times[Axis::kCp] = 4;
  metrics.times[Axis::kPp] = 5;
  EXPECT_EQ(
      nlohmann::json::parse(to_json_line(metrics))["time_ms"].dump(),
      R"({"compute":2.0,"cp":4.0,"data":1.0,"gradients":6.0,"norm":7.0,)"
      R"("optimizer":8.0,"pp":5.0,"tp":3.0})");
}

TEST(LogLine, IsPicotronsWithTheStepsOfTheRunAndTheDevicesName) {
  const StepMetrics metrics{
      .step = 7,
      .loss = 2.5,
      .tokens = 28672,
      .tokens_per_second = 8192,
      .tokens_per_second_per_device = 4096,
      .mfu = 12.5,
      .memory_gb = 1.5};
  EXPECT_EQ(
      log_line(metrics, {.rank = 1, .global_batch_tokens = 4096}),
      "[rank 1] Step: 7     | Loss: 2.5000 | Global batch size:  4.096K | "
      "Tokens/s:  8.192K | Tokens/s/GPU:  4.096K | Tokens: 28.672K | MFU: "
      "12.50% | Memory usage:   1.50GB");
  EXPECT_EQ(
      log_line(
          metrics,
          {.total_steps = 450, .device = "CPU", .max_tokens = 1'000'000}),
      "[rank 0] Step: 7/450     | Loss: 2.5000 | Global batch size:   0.000 | "
      "Tokens/s:  8.192K | Tokens/s/CPU:  4.096K | Tokens: 28.672K/1.000M | "
      "MFU: 12.50% | Memory usage:   1.50GB");
}

TEST(LogLine, IsPrintedForFirstLastRegularAndEvaluatedSteps) {
  std::vector<int64_t> logged;
  for (int64_t step = 1; step <= 11; ++step) {
    StepMetrics metrics{.step = step};
    if (step == 7)
      metrics.eval_loss = 2.0;
    if (is_logged(metrics, /*log_frequency=*/4, /*total_steps=*/11))
      logged.push_back(step);
  }
  EXPECT_EQ(logged, (std::vector<int64_t>{1, 4, 7, 8, 11}));
}

}  // namespace
}  // namespace brigade
