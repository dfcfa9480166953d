// The program started with something missing: a closed descriptor, or room for
// files.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "program_faults.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::ProgramResult;
using testing::StartedProgram;

constexpr size_t kStepsOfStart = 6;

class ProgramStart : public ::testing::Test {
 protected:
  ProgramStart() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["distributed"]["dp_size"] = 2;
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", kStepsOfStart},
        {"learning_rate", 5e-3}};
    testing::write_file(folder_ / "run.json", config.dump());
  }
  // sh -c 'COMMAND "$@" REDIRECTIONS'
  ProgramResult train(
      const std::string& script,
      const std::string& name,
      const Arguments& more = {}) const {
    Arguments all = {
        "-c",
        script,
        "sh",
        testing::program_path(),
        "train",
        "--config",
        (folder_ / "run.json").string(),
        "--nproc",
        std::to_string(ranks_),
        "logging.run_dir=" + run(name).string()};
    all.insert(all.end(), more.begin(), more.end());
    return StartedProgram("sh", all).wait();
  }
  fs::path run(const std::string& name) const { return folder_ / name; }

  testing::RunsFolder folder_;
  int ranks_ = 2;
};

TEST_F(ProgramStart, WithoutStandardDescriptorsARunTrainsAndEnds) {
  int runs = 0;
  for (const std::string closed : {">&-", "<&-", "2>&-", "<&- >&- 2>&-"}) {
    const std::string name = "run" + std::to_string(++runs);
    const ProgramResult result = train("exec \"$@\" " + closed, name);
    // The run is complete, but its lines were lost.
    const bool loses_output =
        closed.find(" >&-") != std::string::npos || closed.starts_with(">&-");
    EXPECT_EQ(result.exit_code, loses_output ? 6 : 0) << closed << result.err;
    EXPECT_EQ(testing::losses_of(run(name)).size(), kStepsOfStart) << closed;
  }
}

// Nobody reads the pipe any more when the program starts.
TEST_F(ProgramStart, ARunOutlivesItsReaders) {
  for (const int ranks : {1, 2}) {
    ranks_ = ranks;
    const std::string name = fmt::format("read{}", ranks);
    const ProgramResult result = train(
        fmt::format(
            "mkfifo '{0}'; true <'{0}' & exec >'{0}'; wait; exec \"$@\"",
            (folder_ / (name + ".pipe")).string()),
        name,
        {fmt::format("distributed.dp_size={}", ranks)});
    EXPECT_EQ(result.exit_code, 128 + SIGPIPE) << result.err;
    EXPECT_EQ(testing::losses_of(run(name)).size(), kStepsOfStart);
    EXPECT_EQ(list_checkpoints(run(name) / "checkpoints").size(), 1U);
  }
}

// Loading libtorch takes a third of a second and 150 MB.
TEST_F(ProgramStart, RanksAloneLoadLibtorch) {
  if (!testing::kCanPreload)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
  const fs::path gate = folder_ / "gate";
  StartedProgram program(
      testing::program_path(),
      {"train",
       "--config",
       (folder_ / "run.json").string(),
       "--nproc",
       "2",
       "distributed.use_cpu=true",
       "logging.run_dir=" + run("run").string()},
      testing::held_ranks(1, gate));
  ASSERT_TRUE(testing::eventually([&] {
    return fs::exists(run("run") / "metrics.jsonl") &&
           !testing::losses_of(run("run")).empty();
  }));
  EXPECT_THAT(
      testing::read_proc(program.pid(), "maps"),
      AllOf(HasSubstr("/brigade"), Not(HasSubstr("libtorch"))));
  for (const int rank : {0, 1})
    EXPECT_THAT(
        testing::read_proc(testing::find_rank(program.pid(), rank), "maps"),
        HasSubstr("libtorch"));
  fs::remove(gate);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(ProgramStart, AFolderForPrometheusThatIsMissingIsFoundAtTheStart) {
  const std::string file = (folder_ / "missing" / "run.prom").string();
  const ProgramResult result =
      train("exec \"$@\"", "run", {"logging.prometheus_file=" + file});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("which logging.prometheus_file '" + file),
          HasSubstr("make that folder")));
  EXPECT_FALSE(fs::exists(run("run") / "metrics.jsonl"));
}

TEST_F(ProgramStart, TheFileForPrometheusMayLieInTheRunFolder) {
  const fs::path file = run("run") / "." / "run.prom";
  const ProgramResult result =
      train("exec \"$@\"", "run", {"logging.prometheus_file=" + file.string()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(file));
}

// Only the tensor files exceed the limit.
TEST_F(ProgramStart, ASaveBeyondTheLimitOfFileSizesIsReportedAndTheRunGoesOn) {
  const ProgramResult result = train(
      "ulimit -f 100; exec \"$@\"", "limited", {"checkpoint.save_frequency=2"});
  EXPECT_EQ(result.exit_code, 6) << result.err;
  const std::string checkpoints = (run("limited") / "checkpoints").string();
  for (const int step : {2, 4})
    EXPECT_THAT(
        result.out,
        HasSubstr(fmt::format("could NOT save {}/{}", checkpoints, step)));
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("File too large"),
          HasSubstr("ulimit -f"),
          HasSubstr(checkpoints + "/6")));
  EXPECT_EQ(testing::losses_of(run("limited")).size(), kStepsOfStart);
  EXPECT_TRUE(list_checkpoints(checkpoints).empty());
}

}  // namespace
}  // namespace brigade
