#include "brigade/metrics/trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support/program.h"

namespace brigade {
namespace {

using nlohmann::json;

constexpr int kCompute = 1;
constexpr int kCommunication = 2;

// Ready 10, 20, 30 us after backward began; the second ends before the first,
// the third is launched when nothing is under way.
SyncReport three_buckets() {
  SyncReport report;
  report.backward_begin_ns = 1'000'000;
  report.backward_end_ns = 1'100'000;
  const auto add = [&](int64_t launched, int64_t finished, int64_t waited) {
    BucketTiming bucket;
    bucket.index = static_cast<int>(report.buckets.size());
    bucket.bytes = 100;
    bucket.ready_ns = 1'000'000 + launched - 1'000;
    bucket.launched_ns = 1'000'000 + launched;
    bucket.finished_ns = 1'000'000 + finished;
    bucket.wait_begin_ns = 1'100'000 + 10'000 * bucket.index;
    bucket.wait_end_ns = bucket.wait_begin_ns + waited;
    report.buckets.push_back(bucket);
  };
  add(11'000, 50'000, 1'000);
  add(21'000, 40'000, 2'000);
  add(81'000, 110'000, 10'000);
  return report;
}

// The spans of a lane, in order of time.
std::vector<json> lane(const json& trace, int tid) {
  std::vector<json> spans;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("tid") == tid)
      spans.push_back(event);
  }
  return spans;
}

double end_of(const json& span) {
  return span.at("ts").get<double>() + span.at("dur").get<double>();
}

// Begins in order; each lies in what is open, or begins after it.
void expect_nesting(const std::vector<json>& spans) {
  std::vector<json> open;
  double last_begin = 0;
  for (const json& span : spans) {
    const double begin = span.at("ts");
    EXPECT_GE(begin, last_begin) << span;
    EXPECT_GE(span.at("dur").get<double>(), 0) << span;
    last_begin = begin;
    while (!open.empty() && end_of(open.back()) <= begin)
      open.pop_back();
    if (!open.empty()) {
      EXPECT_LE(end_of(span), end_of(open.back())) << span << open.back();
    }
    open.push_back(span);
  }
}

TEST(Trace, BucketsCoverJustTheTimeInWhichCommunicationWasUnderWay) {
  Trace trace(3);
  const SyncReport report = three_buckets();
  trace.add(report, 0);
  const json file = json::parse(trace.to_json());
  const std::vector<json> spans = lane(file, kCommunication);
  ASSERT_EQ(spans.size(), 3U);
  // Ordered by their ends: 1 [21, 40], 0 [40, 50], 2 [81, 110].
  EXPECT_EQ(spans[0].at("name"), "bucket 1");
  EXPECT_DOUBLE_EQ(spans[0].at("ts"), 1021);
  EXPECT_DOUBLE_EQ(spans[0].at("dur"), 19);
  EXPECT_EQ(spans[1].at("name"), "bucket 0");
  EXPECT_DOUBLE_EQ(spans[1].at("ts"), 1040);
  EXPECT_DOUBLE_EQ(spans[1].at("dur"), 10);
  EXPECT_EQ(spans[2].at("name"), "bucket 2");
  EXPECT_DOUBLE_EQ(spans[2].at("ts"), 1081);
  EXPECT_DOUBLE_EQ(spans[2].at("dur"), 29);
  EXPECT_DOUBLE_EQ(spans[1].at("args").at("launched_ms"), 0.011);
  expect_nesting(spans);
  for (const json& span : spans)
    EXPECT_EQ(span.at("pid"), 3);
}

TEST(Trace, WaitsAreOnTheLaneOfTheTrainer) {
  Trace trace(0);
  const SyncReport report = three_buckets();
  trace.add(report, 0);
  double waited_us = 0;
  for (const json& span : lane(json::parse(trace.to_json()), kCompute)) {
    EXPECT_EQ(span.at("cat"), "wait");
    waited_us += span.at("dur").get<double>();
  }
  EXPECT_DOUBLE_EQ(waited_us, static_cast<double>(report.exposed_ns()) / 1e3);
}

TEST(Trace, AnOuterSpanComesBeforeTheOnesInIt) {
  Trace trace(0);
  trace.add({TraceLane::kCompute, "inner", 5'000, 6'000, {}});
  trace.add({TraceLane::kCompute, "outer", 5'000, 9'000, {}});
  const auto spans = lane(json::parse(trace.to_json()), kCompute);
  EXPECT_EQ(spans.at(0).at("name"), "outer");
  EXPECT_EQ(spans.at(1).at("name"), "inner");
  expect_nesting(spans);
}

// Traces and metrics.jsonl of one run tell the same of every bucket.
TEST(TraceOfARun, ShowsEveryRanksStepsAsTheReportHasThem) {
  const testing::RunsFolder folder;
  auto config = testing::tiny_run(
      testing::prepare_bytes(folder / "tokens", testing::made_up_text(6000)));
  config["training"]["total_train_steps"] = 4;
  config["training"]["gradient_accumulation_steps"] = 3;
  config["training"]["micro_batch_size"] = 2;
  config["logging"] = {
      {"run_dir", (folder / "run").string()}, {"trace_steps", {2, 4}}};
  // Several buckets of the tiny model.
  config["distributed"] = {{"bucket_cap_mb", 0.02}};
  testing::write_file(folder / "run.json", config.dump());
  const auto result = testing::run_program(
      {"train",
       "--config",
       (folder / "run.json").string(),
       "--nproc",
       "4",
       "--report-overlap",
       "distributed.pp_size=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("trace-rank1.json"), std::string::npos);

  for (int rank = 0; rank < 4; ++rank) {
    const json file = json::parse(testing::read_file(
        folder / fmt::format("run/trace-rank{}.json", rank)));
    const auto compute = lane(file, kCompute);
    const auto communication = lane(file, kCommunication);
    expect_nesting(compute);
    expect_nesting(communication);
    std::map<std::string, int> count;
    for (const json& span : compute)
      ++count[span.at("name")];
    EXPECT_EQ(count["step 2"], 1);
    EXPECT_EQ(count["step 3"], 0);
    EXPECT_EQ(count["step 4"], 1);
    EXPECT_EQ(count["forward"], 2 * 3);
    EXPECT_EQ(count["backward"], 2 * 3);
    EXPECT_EQ(count["optimizer"], 2);
    EXPECT_EQ(
        count
            [rank % 2 == 0 ? "wait for recv_gradient"
                           : "wait for recv_activation"],
        2 * 3);
    if (rank != 1)  // the one whose buckets metrics.jsonl has
      continue;
    std::vector<json> reported;
    for (const json& step : testing::read_metrics(folder / "run")) {
      if (step.at("step") == 2 || step.at("step") == 4) {
        for (const json& bucket : step.at("buckets"))
          reported.push_back(bucket);
      }
    }
    ASSERT_GT(reported.size(), 4U);
    ASSERT_EQ(communication.size(), reported.size());
    const auto is_traced = [&](const json& bucket) {
      return std::any_of(
          communication.begin(), communication.end(), [&](json span) {
            span.at("args").erase("stage");
            return span.at("args") == bucket;
          });
    };
    for (const json& bucket : reported)
      EXPECT_TRUE(is_traced(bucket)) << bucket;
  }
}

}  // namespace
}  // namespace brigade
