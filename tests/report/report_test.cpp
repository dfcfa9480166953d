#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "brigade/base/error.h"
#include "brigade/report/html.h"
#include "brigade/report/metrics_table.h"
#include "brigade/report/planned_schedule.h"
#include "brigade/report/report_page.h"
#include "brigade/report/run_record.h"
#include "brigade/report/run_timeline.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Report : public ::testing::Test {
 protected:
  // Losses 9, 8, 7, ...; speeds 10, 20, 30, ...
  fs::path make_run(const std::string& name, int steps, json config) {
    const fs::path run = folder_ / name;
    fs::create_directories(run / "checkpoints" / "4");
    std::ofstream(run / "checkpoints" / "4" / "manifest.json") << "{}";
    fs::create_directories(run / "checkpoints" / "9.tmp");
    std::ofstream(run / "config.json") << config.dump();
    std::ofstream metrics(run / "metrics.jsonl");
    for (int step = 1; step <= steps; ++step)
      metrics
          << json{{"step", step}, {"loss", 10.0 - step}, {"tokens", 100 * step}, {"tokens_per_second_per_device", 10.0 * step}, {"mfu", 1.0 * step}, {"step_ms", 5.0}}
                 .dump()
          << "\n";
    metrics << "{\"step\": 99, \"lo";  // being written
    return run;
  }

  static json config(int dp, int steps) {
    return {
        {"distributed", {{"dp_size", dp}, {"pp_engine", "1f1b"}}},
        {"training",
         {{"total_train_steps", steps},
          {"micro_batch_size", 3},
          {"seq_length", 64}}}};
  }

  const TemporaryFolder folder_;
};

TEST_F(Report, ReadsWhatIsWholeOfARun) {
  const RunRecord run = read_run(make_run("a", 5, config(2, 5)));
  EXPECT_EQ(run.name, "a");
  EXPECT_EQ(run.steps.size(), 5U);
  EXPECT_THAT(run.checkpoints, ElementsAre(4));
  EXPECT_THROW(read_run(folder_), DataError);
  EXPECT_THROW(read_runs(folder_ / "nowhere"), DataError);
}

TEST_F(Report, SummarisesWithoutTheFirstThreeSteps) {
  const RunSummary run = summarize(read_run(make_run("a", 5, config(2, 5))));
  EXPECT_EQ(run.status, "completed");
  EXPECT_EQ(run.dims.dp, 2);
  EXPECT_EQ(run.micro_batch_size, 3);
  EXPECT_DOUBLE_EQ(run.tokens_per_second_per_device, 45);  // of 40 and 50
  EXPECT_DOUBLE_EQ(run.mfu, 4.5);
  EXPECT_DOUBLE_EQ(run.loss, 5);
  EXPECT_EQ(
      summarize(read_run(make_run("b", 2, config(1, 5)))).status, "running");
  EXPECT_EQ(
      summarize(read_run(make_run("c", 0, config(1, 5)))).status, "empty");
}

TEST_F(Report, ARunThatEndedEarlyIsNotRunning) {
  const fs::path folder = make_run("a", 2, config(1, 5));
  const auto status_with = [&](const std::string& last) {
    std::ofstream(folder / "events.jsonl", std::ios::app)
        << R"({"time": 1, "event": )" << last << "}\n";
    return summarize(read_run(folder)).status;
  };
  EXPECT_EQ(status_with(R"("start")"), "running");
  EXPECT_EQ(status_with(R"("failed", "text": "no memory")"), "failed");
  EXPECT_EQ(status_with(R"("start")"), "running");
  EXPECT_EQ(status_with(R"("end", "stopped": true)"), "stopped");
  EXPECT_EQ(status_with(R"("end", "stopped": false)"), "completed");
}

TEST_F(Report, FindsRunsInFoldersByName) {
  make_run("sweep/b", 3, config(1, 3));
  make_run("sweep/a", 3, config(1, 3));
  make_run("z", 3, config(1, 3));
  // Beside and among runs may be anything.
  fs::create_symlink("loop", folder_ / "loop");
  fs::create_symlink("loop", folder_ / "sweep" / "loop");
  std::vector<std::string> names;
  for (const RunRecord& run : read_runs(folder_))
    names.push_back(run.name);
  EXPECT_THAT(names, ElementsAre("a", "b", "z"));
}

// The columns of extract_metrics.py, in its order, with our own among and after
// them. Its reader takes the means for integers.
TEST_F(Report, CsvHasPicotronsColumnsAndQuotesNames) {
  RunSummary run = summarize(read_run(make_run("a", 5, config(2, 5))));
  run.name = "a,\"b\"";
  EXPECT_EQ(
      to_csv({run}),
      "run_name,status,dp,tp,pp,cp,pp_engine,zero_stage,micro_batch_size,"
      "grad_acc,seq_len,avg_tokens_s_gpu,avg_mfu,steps,mfu_percent,loss\n"
      "\"a,\"\"b\"\"\",completed,2,1,1,1,1f1b,0,3,0,64,45,4,5,4.50,5.0000\n");
}

TEST_F(Report, StepsThatWereNotFiniteHaveNoPartInMeans) {
  const fs::path folder = make_run("a", 4, config(1, 5));
  std::ofstream(folder / "metrics.jsonl", std::ios::app)
      << "\n"
      << R"({"step": 5, "loss": null, "grad_norm": null, "mfu": 6.0})"
      << "\n";
  const RunSummary run = summarize(read_run(folder));
  EXPECT_EQ(run.steps, 5);
  EXPECT_TRUE(std::isnan(run.loss));
  EXPECT_DOUBLE_EQ(run.mfu, 5);                            // of 4 and 6
  EXPECT_DOUBLE_EQ(run.tokens_per_second_per_device, 40);  // of step 4
  EXPECT_THAT(to_csv({run}), HasSubstr(",40,5,5,5.00,nan\n"));
  // extract_metrics.py's value for a run without steps.
  EXPECT_THAT(
      to_csv({summarize(read_run(make_run("b", 0, config(1, 5))))}),
      HasSubstr(",-1,-1,0,nan,nan\n"));
}

// Its first five steps had 100 tokens each; now a step has 192.
TEST_F(Report, ALimitOfTokensCountsThoseOfAnEarlierBatchSize) {
  json limited = config(1, 100);
  limited["training"]["gradient_accumulation_steps"] = 1;
  limited["training"]["max_tokens"] = 500 + 4 * 192 + 191;
  const RunRecord run = read_run(make_run("a", 5, limited));
  EXPECT_EQ(last_step_of(run), 9);
  EXPECT_EQ(last_step_of(limited, {5, 500}), 9);
  EXPECT_EQ(last_step_of(limited), 7);
  EXPECT_EQ(summarize(run).status, "running");
  EXPECT_EQ(json::parse(report_data({run}))[0]["last_step"], 9);
  limited["training"]["max_tokens"] = 500 + 191;
  EXPECT_EQ(summarize(read_run(make_run("b", 5, limited))).status, "completed");
  limited["training"]["max_tokens"] = INT64_MAX;
  EXPECT_EQ(last_step_of(limited, {INT64_MAX, 0}), 100);
}

TEST_F(Report, AConfigThatWasSpoiledByHandHarmsNothingElse) {
  json spoiled = config(2, 5);
  spoiled["distributed"] = {
      {"dp_size", 1 << 20},
      {"tp_size", 1 << 20},
      {"pp_size", INT64_MAX},
      {"pp_virtual_stages", INT64_MAX},
      {"pp_engine", 7},
      {"zero_stage", 0.5}};
  const RunRecord run = read_run(make_run("a", 5, spoiled));
  EXPECT_EQ(summarize(run).pp_engine, "");
  EXPECT_EQ(summarize(run).zero_stage, 0);
  const json data = json::parse(report_data({run}));
  EXPECT_TRUE(data[0]["planned"].is_null());
  EXPECT_FALSE(data[0].contains("ranks"));
  spoiled["distributed"] = "none";
  EXPECT_EQ(summarize(read_run(make_run("b", 5, spoiled))).dims.dp, 1);
}

TEST_F(Report, PageHoldsTheNumbersAndNothingFromElsewhere) {
  const auto run = read_run(make_run("</script>", 5, config(2, 5)));
  const std::string page = report_page({run});
  // The data, as the page's own script reads it.
  const std::string begin = "id=\"data\">";
  const size_t at = page.find(begin) + begin.size();
  const auto data =
      json::parse(page.substr(at, page.find("</script>", at) - at));
  ASSERT_EQ(data.size(), 1U);
  EXPECT_EQ(data[0]["name"], "script>");  // of the path's last part
  ASSERT_EQ(data[0]["steps"].size(), 5U);
  EXPECT_EQ(data[0]["steps"][4]["loss"], 5.0);
  EXPECT_EQ(data[0]["config"]["distributed.dp_size"], 2);
  EXPECT_EQ(data[0]["last_step"], 5);
  EXPECT_THAT(page, HasSubstr("Dygraph"));
  for (const char* elsewhere : {"src=\"http", "href=\"http", "@import"})
    EXPECT_THAT(page, Not(HasSubstr(elsewhere)));
}

// As metrics/trace.h writes them: rank 1 began 2 ms after rank 0.
void write_traces(const fs::path& run) {
  for (int rank = 0; rank < 2; ++rank) {
    const int64_t at = 5'000'000'000 + 2000 * rank;
    const auto span = [&](const char* name,
                          int lane,
                          int64_t begin_us,
                          int64_t length_us,
                          json args) {
      return json{
          {"ph", "X"},
          {"name", name},
          {"pid", rank},
          {"tid", lane},
          {"ts", at + begin_us},
          {"dur", length_us},
          {"args", std::move(args)}};
    };
    const json file{
        {"traceEvents",
         {{{"ph", "M"}, {"name", "process_name"}},
          span("step 7", 1, 0, 10'000, {{"loss", 1}}),
          span("micro-batches", 1, 0, 6'000, {}),
          span("forward", 1, 0, 1'000, {{"micro_batch", 0}, {"stage", rank}}),
          span(
              "wait for recv_gradient",
              1,
              1'000,
              1'000,
              {{"micro_batch", 0}, {"stage", rank}}),
          span(
              "backward_weight",
              1,
              2'000,
              4'000,
              {{"micro_batch", 0}, {"stage", rank}}),
          span("bucket 0", 2, 3'000, 1'000, {{"bucket", 0}, {"bytes", 8}}),
          span("optimizer", 1, 9'000, 1'000, {}),
          span("step 9", 1, 20'000, 5'000, {}),
          span("forward", 1, 20'000, 5'000, {{"micro_batch", 1}})}}};
    json kept = file;
    if (rank == 1)  // has not written its last step yet
      kept["traceEvents"].erase(8);
    std::ofstream(run / ("trace-rank" + std::to_string(rank) + ".json"))
        << kept.dump();
  }
}

TEST_F(Report, TimelineShowsTheLastStepThatAllTracesHave) {
  const fs::path run = make_run("a", 5, config(2, 5));
  EXPECT_TRUE(read_timeline(run).is_null());
  write_traces(run);
  const json timeline = read_timeline(run);
  EXPECT_EQ(timeline["step"], 7);
  EXPECT_EQ(timeline["total_ms"], 12.0);
  ASSERT_EQ(timeline["ranks"].size(), 2U);
  const json& rank = timeline["ranks"][1];
  ASSERT_EQ(rank["spans"].size(), 4U);
  EXPECT_EQ(rank["spans"][0]["kind"], "F");
  EXPECT_EQ(rank["spans"][0]["begin"], 2.0);
  EXPECT_EQ(rank["spans"][1]["kind"], "wait");
  EXPECT_EQ(rank["spans"][2]["kind"], "W");
  EXPECT_EQ(rank["spans"][2]["end"], 8.0);
  EXPECT_EQ(rank["spans"][3]["name"], "optimizer");
  EXPECT_EQ(rank["buckets"].size(), 1U);
}

TEST_F(Report, PlannedScheduleHasTheBubbleOfItsFormula) {
  json asked = config(1, 5);
  asked["distributed"]["pp_size"] = 4;
  asked["training"]["gradient_accumulation_steps"] = 8;
  const json planned = planned_schedule(asked);
  // 1F1B of p ranks and m micro-batches, Narayanan et al. 2019: (p - 1) of (m +
  // p - 1) slots are empty.
  EXPECT_NEAR(planned["bubble"].get<double>(), 3.0 / 11.0, 1e-12);
  ASSERT_EQ(planned["ranks"].size(), 4U);
  EXPECT_EQ(planned["ranks"][0].size(), 16U);
  EXPECT_TRUE(planned_schedule(config(2, 5)).is_null());
  asked["distributed"]["pp_engine"] = "unheard_of";
  EXPECT_TRUE(planned_schedule(asked).is_null());
}

TEST_F(Report, PageHasEventsOriginsAndTheBucketsOfOneStep) {
  const fs::path folder = make_run("a", 5, config(2, 5));
  std::ofstream(folder / "events.jsonl")
      << R"({"time": 1, "event": "start", "origins": {"training.seed": "file"}})"
      << "\n{\"time\": 2, \"eve";
  std::ofstream(folder / "metrics.jsonl")
      << "{\"step\":1,\"buckets\":[1]}\n{\"step\":2,\"buckets\":[2]}\n";
  const json data = json::parse(report_data({read_run(folder)}));
  ASSERT_EQ(data[0]["events"].size(), 1U);
  EXPECT_EQ(data[0]["events"][0]["origins"]["training.seed"], "file");
  EXPECT_FALSE(data[0]["steps"][0].contains("buckets"));
  EXPECT_EQ(data[0]["steps"][1]["buckets"][0], 2);
}

// So many that the page stays small, the last one among them.
TEST_F(Report, PageHasTheTokensOfEachExpertOverTheWholeRun) {
  struct Case {
    int steps, experts, every;
  };
  for (const Case& each :
       {Case{25, 2, 1}, {250, 2, 3}, {250, 2000, 5}, {2, 200'000, 2}}) {
    SCOPED_TRACE(each.experts);
    const fs::path folder =
        make_run(std::to_string(each.steps * each.experts), 0, config(2, 30));
    {
      std::ofstream metrics(folder / "metrics.jsonl");
      const json rows = std::vector<int>(each.experts, 3);
      for (int step = 1; step <= each.steps; ++step)
        metrics << R"({"step":)" << step
                << R"(,"experts":{"max_over_mean":[1.5],)"
                << R"("tokens_per_expert":[)" << rows << "]}}\n";
    }
    const json steps = json::parse(report_data({read_run(folder)}))[0]["steps"];
    ASSERT_EQ(steps.size(), static_cast<size_t>(each.steps));
    for (const json& step : steps) {
      EXPECT_EQ(step["experts"]["max_over_mean"][0], 1.5);
      const int before_last = each.steps - step["step"].get<int>();
      EXPECT_EQ(
          step["experts"].contains("tokens_per_expert"),
          before_last % each.every == 0);
    }
  }
}

TEST(Html, EscapesWhatEndsAnElement) {
  EXPECT_EQ(escaped_html("<a b=\"c\">&"), "&lt;a b=&quot;c&quot;&gt;&amp;");
  const std::string text = escaped_json(R"({"a":"</script><!--"})");
  EXPECT_THAT(text, Not(HasSubstr("<")));
  EXPECT_EQ(json::parse(text)["a"], "</script><!--");
}

}  // namespace
}  // namespace brigade
