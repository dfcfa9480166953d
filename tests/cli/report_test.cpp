// The page of `brigade report` in a browser: its script runs, and its figures
// are those of metrics.jsonl.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "program.h"

namespace brigade {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class ReportCommand : public ProgramTest {
 protected:
  ReportCommand() {
    std::filesystem::create_directory(folder_ / "run");
    std::ofstream(folder_ / "run" / "config.json")
        << R"({"training": {"total_train_steps": 20}})";
    std::ofstream metrics(folder_ / "run" / "metrics.jsonl");
    for (int step = 1; step <= 8; ++step)
      metrics
          << json{{"step", step}, {"loss", 4.0 - 0.125 * step}, {"lr", 1e-3}, {"grad_norm", 1.5}, {"tokens", 1000 * step}, {"tokens_per_second", 2000.0}, {"tokens_per_second_per_device", 1000.0}, {"mfu", 50.0}, {"memory_gb", 1.25}, {"step_ms", 500.0}, {"exposed_comm_ms", 25.0}}
                 .dump()
          << "\n";
  }
};

TEST_F(ReportCommand, WritesAPageThatABrowserShows) {
  const auto page = folder_ / "page.html";
  ASSERT_EQ(
      exit_code(
          start({"report", (folder_ / "run").string(), "-o", page.string()})),
      0)
      << err();
  EXPECT_THAT(out(), HasSubstr("wrote " + page.string()));
  if (std::system("command -v chromium >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no chromium on this machine";
  ASSERT_EQ(
      exit_code(start_program(
          "chromium",
          {"--headless",
           "--no-sandbox",
           "--disable-gpu",
           "--virtual-time-budget=5000",
           "--user-data-dir=" + (folder_ / "profile").string(),
           "--dump-dom",
           "file://" + page.string()})),
      0);
  const std::string shown = out();
  const auto figure = [&](const std::string& name, const std::string& value) {
    return fmt::format("data-figure=\"{}\"><b>{}</b>", name, value);
  };
  EXPECT_THAT(shown, HasSubstr(figure("step", "8 of 20")));
  EXPECT_THAT(shown, HasSubstr(figure("loss", "3.0000")));
  EXPECT_THAT(shown, HasSubstr(figure("tokens/s", "2000")));
  EXPECT_THAT(shown, HasSubstr(figure("MFU", "50.0 %")));
  EXPECT_THAT(shown, HasSubstr(figure("trained for", "0:00:04")));
  EXPECT_THAT(shown, HasSubstr("25.0 ms (5.0 %)"));
  EXPECT_THAT(shown, HasSubstr("data-chart=\"loss\""));
  // The script came to its end.
  EXPECT_THAT(shown, HasSubstr("Checkpoints: none."));
}

TEST_F(ReportCommand, NamesAFolderThatIsNoRun) {
  EXPECT_EQ(exit_code(start({"report", folder_.string()})), 4);
  EXPECT_THAT(err(), HasSubstr("is no run folder"));
}

TEST_F(ReportCommand, TailShowsTheLastSteps) {
  const auto run = (folder_ / "run").string();
  ASSERT_EQ(exit_code(start({"tail", run, "-n", "2"})), 0) << err();
  EXPECT_THAT(out(), HasSubstr("step      7/20  loss   3.1250"));
  EXPECT_THAT(out(), HasSubstr("step      8/20  loss   3.0000"));
  EXPECT_THAT(out(), ::testing::Not(HasSubstr("step      6/20")));
}

TEST_F(ReportCommand, TailFollowsARunToItsLastStep) {
  const pid_t pid = start({"tail", (folder_ / "run").string(), "-f"});
  ASSERT_TRUE(eventually(
      [&] { return out().find("step      8/20") != std::string::npos; }));
  std::ofstream(folder_ / "run" / "metrics.jsonl", std::ios::app)
      << R"({"step": 20, "loss": 1.5})"
      << "\n";
  EXPECT_EQ(exit_code(pid), 0);
  EXPECT_THAT(out(), HasSubstr("step     20/20  loss   1.5000"));
}

TEST_F(ReportCommand, MetricsSummarisesAllRunsOfAFolder) {
  ASSERT_EQ(exit_code(start({"metrics", folder_.string()})), 0) << err();
  EXPECT_THAT(out(), HasSubstr("run_name"));
  EXPECT_THAT(
      read_if_there(folder_ / "global_metrics.csv"), HasSubstr("run,running,"));
  EXPECT_THAT(
      read_if_there(folder_ / "run" / "metrics.csv"), HasSubstr(",1000.0,"));
  EXPECT_THAT(
      read_if_there(folder_ / "metrics.html"), HasSubstr("<td>run</td>"));
}

}  // namespace
}  // namespace brigade
