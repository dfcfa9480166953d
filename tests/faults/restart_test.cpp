// Real processes: training is killed and restarts itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <iterator>

#include "program_faults.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using testing::eventually;
using testing::find_rank;
using ::testing::HasSubstr;
using testing::losses_of;
using ::testing::Not;
using testing::ProgramResult;
using testing::read_proc;
using testing::StartedProgram;

constexpr int kSteps = 60;

class Restart : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    auto config = testing::tiny_run(testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", kSteps},
        {"learning_rate", 5e-3}};
    testing::write_file(*folder_ / "run.json", config.dump());
    const ProgramResult whole =
        StartedProgram(testing::program_path(), arguments("whole")).wait();
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static fs::path run(const std::string& name) { return *folder_ / name; }
  static Arguments arguments(
      const std::string& name,
      const Arguments& more = {}) {
    Arguments all = {
        "train",
        "--config",
        (*folder_ / "run.json").string(),
        "--nproc",
        "2",
        "checkpoint.save_frequency=5",
        "logging.run_dir=" + run(name).string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  // Each time they are started, ranks take that many steps and wait for
  // let_ranks_go(), so that the test acts before the run ends.
  static testing::Variables held_ranks(const std::string& name, int steps) {
    if (!testing::kCanPreload)
      return {};
    return testing::held_ranks(steps, gate(name));
  }
  static void let_ranks_go(const std::string& name) { fs::remove(gate(name)); }
  static fs::path gate(const std::string& name) {
    return *folder_ / (name + ".gate");
  }
  static bool has_step(const std::string& name, int step) {
    std::ifstream file(run(name) / "metrics.jsonl");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    return text.find("\"step\":" + std::to_string(step) + ",") !=
               std::string::npos ||
           text.find("\"step\": " + std::to_string(step) + ",") !=
               std::string::npos;
  }
  // Kills a rank once the run has reached the step.
  static void kill_at(
      const StartedProgram& program,
      const std::string& name,
      int rank,
      int step) {
    ASSERT_TRUE(eventually([&] { return has_step(name, step); })) << step;
    pid_t pid = -1;
    ASSERT_TRUE(eventually([&] {
      pid = find_rank(program.pid(), rank);
      return pid > 0;
    }));
    testing::send_signal(pid, SIGKILL);
  }
  static std::string weights_of(const std::string& name) {
    return testing::tensor_bytes(
        run(name) / "checkpoints" / std::to_string(kSteps) /
        "model.safetensors");
  }

  static testing::RunsFolder* folder_;
};

testing::RunsFolder* Restart::folder_ = nullptr;

TEST_F(Restart, ARunThatIsKilledTwiceEndsAsIfNothingHadHappened) {
  StartedProgram program(
      testing::program_path(),
      arguments("killed", {"--max-restarts", "3"}),
      held_ranks("killed", 14));
  kill_at(program, "killed", 1, 12);
  // The next attempt begins after step 5 or 10.
  held_ranks("killed", 40);
  kill_at(program, "killed", 0, 33);
  let_ranks_go("killed");
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("rank 1 (dp 1) was killed by SIGKILL (9) at step"),
          HasSubstr("rank 0 (dp 0) was killed by SIGKILL (9) at step"),
          HasSubstr("restart 1 of 3, from the newest valid checkpoint"),
          HasSubstr("restart 2 of 3, from the newest valid checkpoint"),
          Not(HasSubstr("restart 3"))));
  EXPECT_EQ(losses_of(run("killed")), losses_of(run("whole")));
  EXPECT_EQ(weights_of("killed"), weights_of("whole"));
}

TEST_F(Restart, BeginsAgainInTheSameFolderBeforeTheFirstCheckpoint) {
  StartedProgram program(
      testing::program_path(),
      arguments(
          "early", {"--max-restarts", "3", "checkpoint.save_frequency=50"}),
      held_ranks("early", 40));
  kill_at(program, "early", 1, 2);
  let_ranks_go("early");
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.err,
      HasSubstr(
          "restart 1 of 3, from the beginning, since no checkpoint was written "
          "yet"));
  EXPECT_EQ(losses_of(run("early")), losses_of(run("whole")));
}

TEST_F(Restart, AWrongConfigIsNotTriedAgain) {
  const ProgramResult result =
      StartedProgram(
          testing::program_path(),
          arguments(
              "wrong", {"--max-restarts", "3", "checkpoint.load_path=/no"}))
          .wait();
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, Not(HasSubstr("restart 1")));
}

TEST_F(Restart, AnEndThatWasAskedForIsNotRestarted) {
  StartedProgram program(
      testing::program_path(),
      arguments(
          "ended",
          {"--max-restarts", "3", "training.total_train_steps=1000000"}));
  ASSERT_TRUE(eventually([&] { return has_step("ended", 7); }));
  testing::send_signal(program.pid(), SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("restart 1")));
}

// Each attempt fails in its third step, so it comes two steps further.
TEST_F(Restart, EndsAtTheLimitOfRestarts) {
  if (!testing::kCanPreload)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
  StartedProgram program(
      testing::program_path(),
      arguments(
          "limit", {"--max-restarts", "2", "checkpoint.save_frequency=1"}),
      testing::failing_rank(1, 3, "exit"));
  const pid_t supervisor = program.pid();
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("rank 1 (dp 1) exited with code 7 at step 3"),
          HasSubstr("restart 2 of 2, from the newest valid checkpoint"),
          HasSubstr("not restarted: it was restarted 2 times already")));
  testing::expect_no_rank_of(supervisor, 2);
  testing::expect_only_valid_checkpoints(run("limit") / "checkpoints");
  // The attempts' progress is not lost.
  const ProgramResult resumed =
      testing::run_program(arguments("limit", {"checkpoint.load_path=auto"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(losses_of(run("limit")), losses_of(run("whole")));
  EXPECT_EQ(weights_of("limit"), weights_of("whole"));
}

TEST_F(Restart, EndsWhereTwoAttemptsComeNoFurther) {
  if (!testing::kCanPreload)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
  const ProgramResult result =
      StartedProgram(
          testing::program_path(),
          arguments(
              "stuck",
              {"--max-restarts", "20", "checkpoint.save_frequency=1000"}),
          testing::failing_rank(0, 4, "throw"))
          .wait();
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("rank 0 (dp 0) failed at step 4: unexpected error: thrown "
                    "in the middle of a step"),
          HasSubstr("restart 1 of 20"),
          // The other rank may be a step ahead in one attempt and not in the
          // one before.
          Not(HasSubstr("restart 3 of 20")),
          HasSubstr("not restarted: it made no progress: the last two attempts "
                    "began at step 1 and 1 and came no further than step ")));
}

// mpirun restarts nothing, and a kill -9 of it notifies nobody.
TEST_F(Restart, RanksEndWhenMpirunIsKilled) {
  if (!fs::exists("/usr/bin/mpirun"))
    GTEST_SKIP() << "mpirun is missing: install openmpi-bin";
  Arguments all = {
      "--allow-run-as-root",
      "--oversubscribe",
      "-n",
      "2",
      testing::program_path()};
  for (const std::string& argument :
       arguments("orphans", {"training.total_train_steps=1000000"})) {
    if (argument != "--nproc" && argument != "2")
      all.push_back(argument);
  }
  StartedProgram program("mpirun", all);
  ASSERT_TRUE(eventually([&] { return has_step("orphans", 3); }));
  std::vector<pid_t> ranks;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const pid_t pid = std::stoi(name);
    if (read_proc(pid, "cmdline").find(run("orphans").string()) !=
            std::string::npos &&
        pid != program.pid())
      ranks.push_back(pid);
  }
  EXPECT_EQ(ranks.size(), 2);
  testing::send_signal(program.pid(), SIGKILL);
  program.wait();
  for (const pid_t pid : ranks) {
    EXPECT_TRUE(eventually([&] {
      const std::string stat = read_proc(pid, "stat");
      const size_t end = stat.rfind(") ");
      return end == std::string::npos || stat[end + 2] == 'Z';
    })) << pid;
  }
}

}  // namespace
}  // namespace brigade
