// What a run does when it gets a signal in training or during a save, as real
// processes on a slow disk.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <string.h>

#include "program_faults.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;
using testing::eventually;
using ::testing::HasSubstr;
using testing::losses_of;
using ::testing::Not;
using testing::ProgramResult;
using testing::StartedProgram;
using testing::Variables;

constexpr int kRanks = 2;
// Bytes per second: the 0.25 MB of each rank take two seconds.
constexpr int64_t kSlow = 120'000;

class Signals : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new testing::RunsFolder;
    auto config = testing::tiny_run(testing::prepare_bytes(
        *folder_ / "tokens", testing::made_up_text(6000)));
    config["dataset"]["shuffle"] = true;
    config["distributed"]["dp_size"] = kRanks;
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 100000000},
        {"learning_rate", 5e-3}};
    testing::write_file(*folder_ / "run.json", config.dump());
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  void SetUp() override {
    if (!testing::kCanPreload)
      GTEST_SKIP() << "a sanitizer wants to be the first library";
  }

  static fs::path run(const std::string& name) { return *folder_ / name; }
  static fs::path checkpoints(const std::string& name) {
    return run(name) / "checkpoints";
  }
  static Arguments rank_arguments(
      const std::string& name,
      const Arguments& more) {
    return testing::train_arguments(*folder_ / "run.json", run(name), more);
  }
  static Arguments arguments(const std::string& name, Arguments more) {
    more.insert(more.end(), {"--nproc", std::to_string(kRanks)});
    return rank_arguments(name, more);
  }
  // A disk that blocks writes of checkpoints until let_disk_go().
  static Variables held_disk(const std::string& name) {
    testing::write_file(gate(name), "");
    return testing::held_disk("/checkpoints/", gate(name));
  }
  static void let_disk_go(const std::string& name) { fs::remove(gate(name)); }
  static fs::path gate(const std::string& name) {
    return *folder_ / (name + ".gate");
  }

  static size_t steps_of(const std::string& name) {
    const fs::path metrics = run(name) / "metrics.jsonl";
    return fs::exists(metrics) ? testing::read_metrics(run(name)).size() : 0;
  }
  // Whether a save is under way, with part of a shard on the disk.
  static bool is_saving(const std::string& name) {
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(checkpoints(name), gone)) {
      if (entry.path().extension() == ".tmp")
        return true;
    }
    return false;
  }
  static void wait_for_step(const std::string& name, size_t step) {
    ASSERT_TRUE(eventually([&] { return steps_of(name) >= step; }));
  }
  static void wait_for_save(const std::string& name) {
    ASSERT_TRUE(eventually([&] { return is_saving(name); }));
  }

  // Waits until the ranks noticed a signal: the run ends its steps.
  static void wait_for_stop(const StartedProgram& program) {
    ASSERT_TRUE(eventually([&] {
      return program.output_so_far().find("asked to stop: step ") !=
             std::string::npos;
    }));
  }

  // The last reported step is saved, all checkpoints are valid, and the run
  // continues as if nothing had happened.
  static void expect_saved_and_continued(const std::string& name) {
    testing::expect_only_valid_checkpoints(checkpoints(name));
    EXPECT_FALSE(is_saving(name));
    const size_t steps = steps_of(name);
    EXPECT_TRUE(fs::exists(
        checkpoints(name) / std::to_string(steps) / "manifest.json"));
    expect_continues_bit_for_bit(name, steps + 3);
  }
  static void expect_continues_bit_for_bit(
      const std::string& name,
      size_t last_step) {
    const Arguments rest = {
        "checkpoint.load_path=auto",
        "training.total_train_steps=" + std::to_string(last_step)};
    const std::string whole = name + "_whole";
    for (const std::string& each : {name, whole}) {
      const ProgramResult result = testing::run_program(arguments(each, rest));
      ASSERT_EQ(result.exit_code, 0) << result.err;
    }
    EXPECT_EQ(losses_of(run(name)), losses_of(run(whole)));
    const std::string last = std::to_string(last_step);
    EXPECT_TRUE(
        testing::all_tensor_bytes(checkpoints(name) / last) ==
        testing::all_tensor_bytes(checkpoints(whole) / last));
  }

  static testing::RunsFolder* folder_;
};

testing::RunsFolder* Signals::folder_ = nullptr;

class EndingSignal : public Signals,
                     public ::testing::WithParamInterface<int> {};

TEST_P(EndingSignal, SavesAndStopsDuringTraining) {
  const std::string name = fmt::format("training_{}", GetParam());
  StartedProgram program(
      testing::program_path(), arguments(name, {}), held_disk(name));
  const pid_t supervisor = program.pid();
  wait_for_step(name, 3);
  testing::send_signal(supervisor, GetParam());
  wait_for_save(name);
  let_disk_go(name);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  // No failure of a rank.
  EXPECT_THAT(result.err, Not(HasSubstr("error: rank")));
  testing::expect_no_rank_of(supervisor, kRanks);
  expect_saved_and_continued(name);
}

TEST_P(EndingSignal, LetsASaveUnderWayEndThenSavesAgainAndStops) {
  const std::string name = fmt::format("saving_{}", GetParam());
  StartedProgram program(
      testing::program_path(),
      arguments(name, {"checkpoint.save_frequency=4"}),
      held_disk(name));
  const pid_t supervisor = program.pid();
  wait_for_save(name);
  testing::send_signal(supervisor, GetParam());
  wait_for_stop(program);
  let_disk_go(name);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  // No failure of a rank.
  EXPECT_THAT(result.err, Not(HasSubstr("error: rank")));
  testing::expect_no_rank_of(supervisor, kRanks);
  EXPECT_TRUE(fs::exists(checkpoints(name) / "4" / "manifest.json"));
  expect_saved_and_continued(name);
}

// All ranks agree on the signal: they end with one code, and none fails.
TEST_P(EndingSignal, SavesAndStopsTheRunWhenOneRankGetsIt) {
  const std::string name = fmt::format("rank_{}", GetParam());
  StartedProgram program(testing::program_path(), arguments(name, {}));
  const pid_t supervisor = program.pid();
  wait_for_step(name, 3);
  testing::send_signal(testing::find_rank(supervisor, 1), GetParam());
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  EXPECT_THAT(result.err, Not(HasSubstr("error: rank")));
  EXPECT_THAT(result.out, HasSubstr("as asked"));
  expect_saved_and_continued(name);
}

INSTANTIATE_TEST_SUITE_P(
    Signals,
    EndingSignal,
    ::testing::Values(SIGTERM, SIGINT, SIGHUP),
    [](const auto& each) {
      return std::string("SIG") + ::sigabbrev_np(each.param);
    });

TEST_F(Signals, Usr1DuringASaveSavesOnceMoreAndGoesOn) {
  const std::string name = "usr1";
  StartedProgram program(
      testing::program_path(),
      arguments(name, {"checkpoint.save_frequency=1000000"}),
      held_disk(name));
  wait_for_step(name, 3);
  testing::send_signal(program.pid(), SIGUSR1);
  wait_for_save(name);
  testing::send_signal(program.pid(), SIGUSR1);
  wait_for_step(name, steps_of(name) + 5);
  let_disk_go(name);
  ASSERT_TRUE(eventually(
      [&] { return list_checkpoints(checkpoints(name)).size() >= 2; }));
  wait_for_step(name, steps_of(name) + 5);
  testing::send_signal(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGTERM);
  // One save for each signal, and the last step's. Ranks that see a signal on
  // different sides of a save's start ask for one more.
  const size_t saved = list_checkpoints(checkpoints(name)).size();
  EXPECT_GE(saved, 3U);
  EXPECT_LE(saved, 5U);
  expect_saved_and_continued(name);
}

// A run without a supervisor: its one process gets it before it has handlers.
TEST_F(Signals, Usr1WhileTheProgramLoadsIsHeardOnceItTrains) {
  const std::string name = "loading";
  const ProgramResult result = testing::run_program(
      rank_arguments(
          name, {"distributed.dp_size=1", "training.total_train_steps=3"}),
      testing::signal_while_loading(SIGUSR1));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto saved = list_checkpoints(checkpoints(name));
  ASSERT_EQ(saved.size(), 2U);
  EXPECT_EQ(saved.front().step, 1);
}

// The save never ends.
TEST_F(Signals, ASecondIntEndsAtOnceAndTheCheckpointBeforeStaysValid) {
  const std::string name = "twice";
  ASSERT_EQ(
      testing::run_program(arguments(name, {"training.total_train_steps=3"}))
          .exit_code,
      0);
  StartedProgram program(
      testing::program_path(),
      arguments(
          name, {"checkpoint.load_path=auto", "checkpoint.save_frequency=5"}),
      held_disk(name));
  const pid_t supervisor = program.pid();
  wait_for_save(name);
  testing::send_signal(supervisor, SIGINT);
  wait_for_stop(program);
  EXPECT_TRUE(is_saving(name));
  testing::send_signal(supervisor, SIGINT);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  testing::expect_no_rank_of(supervisor, kRanks);
  testing::expect_only_valid_checkpoints(checkpoints(name));
  EXPECT_EQ(list_checkpoints(checkpoints(name)).back().step, 3);
  expect_continues_bit_for_bit(name, 8);
  // The interrupted save's files are gone.
  EXPECT_FALSE(is_saving(name));
}

TEST_F(Signals, SaveSecondsSavesByTheClock) {
  const std::string name = "seconds";
  StartedProgram program(
      testing::program_path(), arguments(name, {"checkpoint.save_seconds=1"}));
  ASSERT_TRUE(eventually(
      [&] { return list_checkpoints(checkpoints(name)).size() >= 2; }));
  testing::send_signal(program.pid(), SIGTERM);
  EXPECT_EQ(program.wait().exit_code, 128 + SIGTERM);
  expect_saved_and_continued(name);
}

// Open MPI 5 and later kill within half a second, whatever the parameters.
bool waits_no_longer() {
  StartedProgram program("mpirun", {"--version"}, {});
  return program.wait().out.find("(Open MPI) 4") == std::string::npos;
}

// mpirun waits odls_base_sigkill_timeout (one second) before SIGTERM and again
// before SIGKILL, and reads no output meanwhile. Ranks that print each step
// would block in a write, so these only print their saves.
class Mpirun : public Signals {
 protected:
  void SetUp() override {
    Signals::SetUp();
    if (!fs::exists("/usr/bin/mpirun"))
      GTEST_SKIP() << "mpirun is missing: install openmpi-bin";
  }
  // Ends mpirun in the second save, after the first one is complete.
  static ProgramResult end_in_a_save(
      const std::string& name,
      const Arguments& more) {
    Arguments all = more;
    all.insert(
        all.end(),
        {"--allow-run-as-root",
         "--oversubscribe",
         "-n",
         std::to_string(kRanks),
         testing::program_path()});
    // Every step is saved before the next one begins, so there are few steps,
    // however long mpirun waits.
    for (const std::string& argument : rank_arguments(
             name,
             {"checkpoint.save_frequency=1",
              "checkpoint.async=false",
              "logging.log_frequency=1000000"}))
      all.push_back(argument);
    StartedProgram program(
        "mpirun", all, testing::slow_disk("/checkpoints/", kSlow));
    EXPECT_TRUE(eventually([&] {
      return fs::exists(checkpoints(name) / "latest") && is_saving(name);
    }));
    testing::send_signal(program.pid(), SIGTERM);
    return program.wait();
  }
};

TEST_F(Mpirun, LeavesTheCheckpointBeforeASaveThatOutlastsItsGrace) {
  const std::string name = "grace";
  const ProgramResult result = end_in_a_save(name, {});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(
      result.out,
      HasSubstr(
          waits_no_longer() ? "send SIGTERM to a rank"
                            : "odls_base_sigkill_timeout"));
  testing::expect_only_valid_checkpoints(checkpoints(name));
  const auto left = list_checkpoints(checkpoints(name));
  ASSERT_FALSE(left.empty());
  expect_continues_bit_for_bit(name, static_cast<size_t>(left.back().step) + 5);
}

TEST_F(Mpirun, WaitsForTheSaveWhereItsTimeoutIsLonger) {
  if (waits_no_longer())
    GTEST_SKIP() << "Open MPI 5 has no such timeout";
  const std::string name = "patience";
  const ProgramResult result =
      end_in_a_save(name, {"--mca", "odls_base_sigkill_timeout", "40"});
  EXPECT_THAT(result.out, Not(HasSubstr("odls_base_sigkill_timeout")));
  expect_saved_and_continued(name);
}

}  // namespace
}  // namespace brigade
