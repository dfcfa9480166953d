// One folder of checkpoints holds one trajectory of one run.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include "brigade/run/checkpoint_folder.h"
#include "tests/support/program.h"
#include "tests/support/ranks_of_program.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using testing::eventually;
using ::testing::HasSubstr;
using testing::losses_of;
using testing::ProgramResult;

class CheckpointTrajectories : public ::testing::Test {
 protected:
  CheckpointTrajectories() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 6},
        {"learning_rate", 5e-3}};
    config["checkpoint"]["save_frequency"] = 2;
    testing::write_file(folder_ / "run.json", config.dump());
  }
  fs::path run(const std::string& name) const { return folder_ / name; }
  fs::path checkpoints(const std::string& name) const {
    return run(name) / "checkpoints";
  }
  Arguments arguments(const std::string& name, const Arguments& more) const {
    return testing::train_arguments(folder_ / "run.json", run(name), more);
  }
  ProgramResult train(const std::string& name, const Arguments& more) const {
    return testing::run_program(arguments(name, more));
  }
  static std::vector<int64_t> steps_in(const fs::path& folder) {
    std::vector<int64_t> steps;
    for (const CheckpointEntry& entry : list_checkpoints(folder))
      steps.push_back(entry.step);
    return steps;
  }

  testing::RunsFolder folder_;
};

using Steps = std::vector<int64_t>;

// Step 2 again at another rate: 4 and 6 are of the old trajectory.
TEST_F(CheckpointTrajectories, ContinuingAnEarlierStepLeavesTheLaterOnes) {
  for (const std::string nproc : {"1", "2"}) {
    SCOPED_TRACE(nproc);
    const std::string name = "run" + nproc;
    const Arguments layout = {"--nproc", nproc, "distributed.pp_size=" + nproc};
    const auto with = [&](Arguments more) {
      more.insert(more.end(), layout.begin(), layout.end());
      return more;
    };
    ASSERT_EQ(train(name, layout).exit_code, 0);
    ASSERT_EQ(steps_in(checkpoints(name)), Steps({2, 4, 6}));
    const ProgramResult other = train(
        name,
        with(
            {"checkpoint.load_path=" + (checkpoints(name) / "2").string(),
             "training.learning_rate=0.001",
             "training.total_train_steps=3"}));
    ASSERT_EQ(other.exit_code, 0) << other.err;
    EXPECT_THAT(other.out, AllOf(HasSubstr("set aside in"), HasSubstr("4, 6")));
    EXPECT_EQ(steps_in(checkpoints(name)), Steps({2, 3}));
    EXPECT_TRUE(fs::exists(checkpoints(name) / "6.set-aside"));
    // "auto" goes on from step 3, not from the 6 of the old trajectory.
    const ProgramResult resumed = train(
        name,
        with(
            {"checkpoint.load_path=auto",
             "training.learning_rate=0.001",
             "training.total_train_steps=8"}));
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_THAT(
        resumed.out,
        HasSubstr("continuing '" + (checkpoints(name) / "3").string()));
    EXPECT_EQ(losses_of(run(name)).size(), 8U);
  }
}

TEST_F(CheckpointTrajectories, AnotherRunsCheckpointsAreLeftTooAndNoneIsLost) {
  ASSERT_EQ(train("first", {}).exit_code, 0);
  ASSERT_EQ(train("second", {}).exit_code, 0);
  for (const char* aside : {".set-aside", ".set-aside-2"}) {
    const ProgramResult forked = train(
        "second",
        {"checkpoint.load_path=" + (checkpoints("first") / "4").string()});
    ASSERT_EQ(forked.exit_code, 0) << forked.err;
    // The first time all that were there, then what the fork saved itself.
    EXPECT_TRUE(fs::exists(checkpoints("second") / fmt::format("6{}", aside)));
    EXPECT_EQ(steps_in(checkpoints("second")), Steps({6}));
  }
}

// metrics.jsonl too: its first steps would be of one run and the rest of
// another.
TEST_F(CheckpointTrajectories, AnotherRunsMetricsAreSetAside) {
  ASSERT_EQ(train("first", {}).exit_code, 0);
  ASSERT_EQ(train("second", {"training.learning_rate=0.001"}).exit_code, 0);
  const std::vector<double> before = losses_of(run("second"));
  const Arguments fork = {
      "checkpoint.load_path=" + (checkpoints("first") / "4").string()};
  const ProgramResult forked = train("second", fork);
  ASSERT_EQ(forked.exit_code, 0) << forked.err;
  const fs::path aside = run("second") / "set-aside";
  EXPECT_THAT(
      forked.out,
      AllOf(HasSubstr("the record of another run"), HasSubstr(aside.string())));
  EXPECT_EQ(losses_of(aside), before);
  EXPECT_TRUE(fs::exists(aside / "events.jsonl"));
  EXPECT_EQ(testing::read_metrics(run("second")).front().at("step"), 5);
  // What is there now is of the run that goes on.
  ASSERT_EQ(train("second", fork).exit_code, 0);
  EXPECT_FALSE(fs::exists(run("second") / "set-aside-2"));
  EXPECT_EQ(losses_of(run("second")).size(), 2U);
}

TEST_F(CheckpointTrajectories, ARunDoesNotBeginBesideCheckpointsThatAreThere) {
  const std::string save_dir =
      "checkpoint.save_dir=" + (folder_ / "saved").string();
  ASSERT_EQ(train("first", {save_dir}).exit_code, 0);
  testing::write_file(folder_ / "saved" / "notes.txt", "the user's");
  const ProgramResult second = train("second", {save_dir});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(
      second.err,
      AllOf(
          HasSubstr("/checkpoint/save_dir"),
          HasSubstr("already holds checkpoints"),
          HasSubstr("checkpoint.load_path")));
  EXPECT_EQ(steps_in(folder_ / "saved"), Steps({2, 4, 6}));

  const ProgramResult replaced =
      train("third", {save_dir, "--overwrite", "training.total_train_steps=3"});
  EXPECT_EQ(replaced.exit_code, 0) << replaced.err;
  EXPECT_EQ(steps_in(folder_ / "saved"), Steps({2, 3}));
  EXPECT_TRUE(fs::exists(folder_ / "saved" / "notes.txt"));
}

TEST_F(CheckpointTrajectories, ASecondRunOnTheSameSaveDirIsRefused) {
  const std::string save_dir =
      "checkpoint.save_dir=" + (folder_ / "saved").string();
  testing::StartedProgram first(
      testing::program_path(),
      arguments(
          "first",
          {save_dir,
           "checkpoint.load_path=auto",
           "training.total_train_steps=100000000"}));
  ASSERT_TRUE(
      eventually([&] { return fs::exists(folder_ / "saved" / "latest"); }));
  const ProgramResult second =
      train("second", {save_dir, "checkpoint.load_path=auto"});
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(
      second.err,
      AllOf(
          HasSubstr(
              "the folder of checkpoints '" + (folder_ / "saved").string()),
          HasSubstr(fmt::format("process {} on host", first.pid()))));
  ::kill(first.pid(), SIGTERM);
  EXPECT_EQ(first.wait().exit_code, 128 + SIGTERM);
}

}  // namespace
}  // namespace brigade
