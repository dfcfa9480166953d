// The page of `brigade report` in a browser: its scripts run, and its figures
// equal those of metrics.jsonl.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>

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
    std::ofstream(folder_ / "run" / "config.json") << R"({
      "training": {"total_train_steps": 20, "gradient_accumulation_steps": 4},
      "distributed": {"pp_size": 2, "pp_engine": "1f1b"}})";
    std::ofstream(folder_ / "run" / "events.jsonl")
        << R"({"time":1.7e9,"event":"start","step":0,"layout":"pp 2",)"
        << R"("parameters":5000,"peak_flops":2e11,"environment":{"host":"h7"},)"
        << R"("origins":{"distributed.pp_size":"command line"}})"
        << "\n"
        << R"({"time":1.7e9,"event":"message","text":"rank 1 (pp 1) is slow"})"
        << "\n";
    std::ofstream metrics(folder_ / "run" / "metrics.jsonl");
    for (int step = 1; step <= 8; ++step)
      metrics
          << json{{"step", step}, {"loss", 4.0 - 0.125 * step}, {"lr", 1e-3}, {"grad_norm", 1.5}, {"tokens", 1000 * step}, {"tokens_per_second", 2000.0}, {"tokens_per_second_per_device", 1000.0}, {"mfu", 50.0}, {"memory_gb", 1.25}, {"step_ms", 500.0}, {"exposed_comm_ms", 25.0}, {"time_ms", {{"data", 5.0}, {"compute", 400.0}, {"tp", 0.0}, {"cp", 0.0}, {"pp", 45.0}, {"gradients", 25.0}, {"norm", 10.0}, {"optimizer", 15.0}}}}
                 .dump()
          << "\n";
  }

  bool has_chromium() const {
    return std::system("command -v chromium >/dev/null 2>&1") == 0;
  }
  // The page's elements after its scripts ran; script errors are in err().
  std::string shown_by_chromium(const std::string& url) const {
    EXPECT_EQ(
        exit_code(start_program(
            "chromium",
            {"--headless",
             "--no-sandbox",
             "--disable-gpu",
             "--enable-logging=stderr",
             "--virtual-time-budget=5000",
             "--user-data-dir=" + (folder_ / "profile").string(),
             "--dump-dom",
             url})),
        0);
    EXPECT_THAT(err(), ::testing::Not(HasSubstr("CONSOLE")));
    return out();
  }
  // The response to a GET with that Host name.
  std::string get(int port, const std::string& path, const std::string& host)
      const {
    EXPECT_EQ(
        exit_code(start_program(
            "bash",
            {"-c",
             fmt::format(
                 "exec 3<>/dev/tcp/127.0.0.1/{}; printf 'GET {} HTTP/1.1\\r\\n"
                 "Host: {}\\r\\nConnection: close\\r\\n\\r\\n' >&3; cat <&3 "
                 ">$T/answer",
                 port,
                 path,
                 host)})),
        0);
    return read_if_there(folder_ / "answer");
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
  if (!has_chromium())
    GTEST_SKIP() << "no chromium on this machine";
  const std::string shown = shown_by_chromium("file://" + page.string());
  const auto figure = [&](const std::string& name, const std::string& value) {
    return fmt::format("data-figure=\"{}\"><b>{}</b>", name, value);
  };
  // Each figure is that of metrics.jsonl.
  EXPECT_THAT(shown, HasSubstr(figure("step", "8 of 20")));
  EXPECT_THAT(shown, HasSubstr(figure("loss", "3.0000")));
  EXPECT_THAT(shown, HasSubstr(figure("tokens/s", "2000")));
  EXPECT_THAT(shown, HasSubstr(figure("MFU", "50.0 %")));
  EXPECT_THAT(shown, HasSubstr(figure("trained for", "0:00:04")));
  EXPECT_THAT(shown, HasSubstr("transfers and bubble 45.0 ms (9.0 %)"));
  EXPECT_THAT(shown, HasSubstr("optimizer 15.0 ms (3.0 %)"));
  EXPECT_THAT(shown, HasSubstr("data-chart=\"loss\""));
  // 1F1B over 2 ranks and 4 micro-batches: 1 of 5 slots is empty.
  EXPECT_THAT(shown, HasSubstr("ranks wait 20.0 % of the time"));
  EXPECT_THAT(shown, HasSubstr("rank 1 (pp 1) is slow"));
  EXPECT_THAT(
      shown,
      HasSubstr("<td>distributed.pp_size</td><td>2</td><td>command line</td>"));
  EXPECT_THAT(shown, HasSubstr("<td>host</td><td>h7</td>"));
  EXPECT_THAT(shown, HasSubstr("Checkpoints: none."));
  // The scripts ran to their end.
  EXPECT_THAT(shown, HasSubstr("data-shown=\"all\""));
}

// One picture per layer, one column per step, one row per expert.
TEST_F(ReportCommand, ExpertsAreDrawnByLayerAndStep) {
  if (!has_chromium())
    GTEST_SKIP() << "no chromium on this machine";
  {
    std::ofstream metrics(folder_ / "run" / "metrics.jsonl");
    for (int step = 1; step <= 8; ++step)
      metrics << R"({"step":)" << step << R"(,"experts":{"dropped":0,)"
              << R"("layers":[1,4],"max_over_mean":[1.5,1.25],)"
              << R"("entropy":[0.9,0.95],"dead":[1,0],)"
              << R"("router_norm":[0.5,0.75],)"
              << R"("tokens_per_expert":[[3,3,0],[2,2,2]]}})"
              << "\n";
  }
  const auto page = folder_ / "page.html";
  ASSERT_EQ(
      exit_code(
          start({"report", (folder_ / "run").string(), "-o", page.string()})),
      0)
      << err();
  const std::string shown = shown_by_chromium("file://" + page.string());
  EXPECT_THAT(
      shown,
      HasSubstr("Steps 1 to 8, 8 of them with each expert; in the last one 1 "
                "experts were not chosen"));
  for (const int layer : {1, 4}) {
    for (const int rows : {3, 1})
      EXPECT_THAT(
          shown,
          HasSubstr(fmt::format(
              "<div class=\"lane\" data-layer=\"{0}\"><span "
              "class=\"lane-name\">layer {0}</span><canvas class=\"cells\" "
              "width=\"8\" height=\"{1}\"",
              layer,
              rows)));
  }
  for (const char* chart : {"expert_load", "expert_entropy", "router_norm"})
    EXPECT_THAT(shown, HasSubstr(fmt::format("data-chart=\"{}\"", chart)));
  EXPECT_THAT(shown, HasSubstr("data-shown=\"all\""));
}

TEST_F(ReportCommand, LiveServesThisMachineAloneAndFollowsTheRun) {
  const auto run = folder_ / "run";
  const pid_t server = start({"report", run.string(), "--live"});
  const std::string begin = "http://127.0.0.1:";
  ASSERT_TRUE(eventually([&] {
    return out().find("until Ctrl-C") != std::string::npos;
  })) << err();
  const std::string url = out().substr(out().find(begin));
  const int port = std::stoi(url.substr(begin.size()));
  EXPECT_THAT(get(port, "/data.json", "127.0.0.1"), HasSubstr("\"step\":8"));
  std::ofstream(run / "metrics.jsonl", std::ios::app)
      << R"({"step":9,"loss":2.5})"
      << "\n";
  EXPECT_THAT(get(port, "/data.json", "localhost"), HasSubstr("\"step\":9"));
  // A foreign host name that resolves to this machine.
  for (const char* name : {"evil.example", "127.evil.example"}) {
    const std::string refused = get(port, "/data.json", name);
    EXPECT_THAT(refused, HasSubstr("403"));
    EXPECT_THAT(refused, ::testing::Not(HasSubstr("\"step\"")));
  }
  if (has_chromium()) {
    const std::string shown =
        shown_by_chromium(begin + std::to_string(port) + "/");
    EXPECT_THAT(shown, HasSubstr("<b>2.5000</b>"));
    EXPECT_THAT(shown, HasSubstr("data-state=\"live\""));
  }
  ::kill(server, SIGTERM);
  EXPECT_EQ(exit_code(server), 128 + SIGTERM);
}

TEST_F(ReportCommand, LiveRefusesOtherAddressesUnlessAsked) {
  const auto run = (folder_ / "run").string();
  EXPECT_EQ(
      exit_code(start({"report", run, "--live", "--address", "0.0.0.0"})), 2);
  EXPECT_THAT(err(), HasSubstr("--public"));
  EXPECT_EQ(exit_code(start({"report", run, "--port", "8000"})), 2);
  EXPECT_EQ(exit_code(start({"report", run, "--live", "-o", "x.html"})), 2);
  EXPECT_THAT(err(), HasSubstr("excludes"));
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

// training.on_non_finite=skip writes such lines.
TEST_F(ReportCommand, TailAndMetricsShowAStepThatWasNotFinite) {
  std::ofstream(folder_ / "run" / "metrics.jsonl", std::ios::app)
      << R"({"step": 9, "loss": null, "lr": 1e-3, "grad_norm": null})"
      << "\n";
  const auto run = (folder_ / "run").string();
  ASSERT_EQ(exit_code(start({"tail", run, "-n", "1"})), 0) << err();
  EXPECT_THAT(out(), HasSubstr("step      9/20  loss      nan"));
  EXPECT_THAT(out(), HasSubstr("norm      nan"));
  ASSERT_EQ(exit_code(start({"metrics", run})), 0) << err();
  EXPECT_THAT(
      read_if_there(folder_ / "run" / "metrics.csv"), HasSubstr(",nan\n"));
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

TEST_F(ReportCommand, TailFollowsARunThroughItsRestarts) {
  const auto event = [&](const std::string& facts) {
    std::ofstream(folder_ / "run" / "events.jsonl", std::ios::app)
        << R"({"time":1.7e9,"event":)" << facts << "}\n";
  };
  const auto shows = [&](const std::string& text) {
    return eventually([&] { return out().find(text) != std::string::npos; });
  };
  event(R"("end","step":8,"stopped":true)");
  const pid_t pid = start({"tail", (folder_ / "run").string(), "-f"});
  ASSERT_TRUE(shows("the run stopped after step 8\n"));
  event(R"("start","step":8)");
  event(R"("failed","text":"no memory")");
  ASSERT_TRUE(shows("the run failed after step 8\n"));
  event(R"("start","step":8)");
  event(R"("end","step":9)");
  EXPECT_EQ(exit_code(pid), 0);
  const std::string stopped = "the run stopped";
  EXPECT_EQ(out().find(stopped), out().rfind(stopped));
}

TEST_F(ReportCommand, MetricsSummarisesAllRunsOfAFolder) {
  ASSERT_EQ(exit_code(start({"metrics", folder_.string()})), 0) << err();
  EXPECT_THAT(out(), HasSubstr("run_name"));
  EXPECT_THAT(
      read_if_there(folder_ / "global_metrics.csv"), HasSubstr("run,running,"));
  EXPECT_THAT(
      read_if_there(folder_ / "run" / "metrics.csv"),
      HasSubstr(",1000,50,8,50.00,3.0000"));
  EXPECT_THAT(
      read_if_there(folder_ / "metrics.html"), HasSubstr("<td>run</td>"));
}

}  // namespace
}  // namespace brigade
