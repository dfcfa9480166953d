// Ranks that stop making progress without ending, as real processes: one or all
// of them stopped or blocked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

#include "program_faults.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Arguments;
using testing::eventually;
using testing::find_rank;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::StartedProgram;
using Clock = std::chrono::steady_clock;

// The time limit, which the steps before a stall must keep as well.
constexpr std::chrono::seconds kTimeout{3};
constexpr int kAttempts = 20;

struct Layout {
  std::string name;
  Arguments sizes;
  std::string name_of_rank_1;
  int nproc = 2;
};

// Stops only that thread until this process ends; runs in its own process.
[[noreturn]] void hold_main_thread(pid_t pid) {
  if (::ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) != 0 ||
      ::ptrace(PTRACE_INTERRUPT, pid, nullptr, nullptr) != 0) {
    testing::send_signal(pid, SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  while (::waitpid(pid, &status, __WALL) == pid && !WIFEXITED(status) &&
         !WIFSIGNALED(status)) {
  }
  ::_exit(0);
}

class Stalled : public ::testing::TestWithParam<Layout> {
 protected:
  Stalled() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 1000000},
        {"learning_rate", 5e-3}};
    testing::write_file(folder_ / "run.json", config.dump());
  }

  fs::path run() const { return folder_ / "run"; }

  using Program = std::unique_ptr<StartedProgram>;

  Program start(
      const Arguments& more,
      const testing::Variables& variables = {}) {
    Arguments all = {
        "train",
        "--config",
        (folder_ / "run.json").string(),
        "--nproc",
        std::to_string(GetParam().nproc),
        "logging.run_dir=" + run().string()};
    all.insert(all.end(), GetParam().sizes.begin(), GetParam().sizes.end());
    all.insert(all.end(), more.begin(), more.end());
    return std::make_unique<StartedProgram>(
        testing::program_path(), all, variables);
  }

  // A run that has trained these steps. Starts another one if a busy machine
  // made it exceed its limits.
  Program start_trained(
      const Arguments& more,
      int64_t steps = 5,
      const testing::Variables& variables = {}) {
    std::string errors;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      fs::remove_all(run());
      Program program = start(more, variables);
      EXPECT_TRUE(eventually(
          [&] { return has_trained(steps) || has_ended(program->pid()); }));
      if (has_trained(steps))
        return program;
      // Only the limits of a step or a collective may have ended it.
      const ProgramResult ended = program->wait();
      errors += ended.err;
      if (ended.exit_code != 7 && ended.exit_code != 3)
        break;
    }
    throw std::runtime_error(errors);
  }

  static Arguments watched(std::chrono::seconds timeout = kTimeout) {
    return {"training.step_timeout_seconds=" + std::to_string(timeout.count())};
  }

  // It is a zombie: a child that nobody has waited for yet.
  static bool has_ended(pid_t pid) {
    const std::string stat = testing::read_proc(pid, "stat");
    const size_t end = stat.rfind(") ");
    return end != std::string::npos && stat[end + 2] == 'Z';
  }

  bool has_trained(int64_t steps) const {
    std::ifstream file(run() / "metrics.jsonl");
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n') >= steps;
  }

  static pid_t rank_of(const StartedProgram& program, int rank) {
    pid_t pid = -1;
    EXPECT_TRUE(eventually([&] {
      pid = find_rank(program.pid(), rank);
      return pid > 0 || has_ended(program.pid());
    }));
    return pid;
  }

  std::string analysis() const {
    const ProgramResult result =
        testing::run_program({"analyze", run().string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  }

  testing::RunsFolder folder_;
};

TEST_P(Stalled, AStoppedRankIsNamedAndEndsTheRun) {
  const Program program = start_trained(watched());
  testing::send_signal(rank_of(*program, 1), SIGSTOP);
  const ProgramResult result = program->wait();
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(
      result.err,
      AllOf(
          HasSubstr("error: " + GetParam().name_of_rank_1 + " failed at step"),
          HasSubstr("StallError: the step is past its deadline"),
          HasSubstr("more: brigade analyze")));
  EXPECT_THAT(
      analysis(), HasSubstr("look first at " + GetParam().name_of_rank_1));
}

TEST_P(Stalled, RanksThatAreAllStoppedEndTheRun) {
  const Program program = start_trained(watched());
  for (int rank = 0; rank < GetParam().nproc; ++rank)
    testing::send_signal(rank_of(*program, rank), SIGSTOP);
  const ProgramResult result = program->wait();
  EXPECT_EQ(result.exit_code, 7) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the process does not run"));
}

// Whether the program reports that the others waited for this rank, or that it
// waited for nobody.
bool blames(const std::string& errors, const std::string& name) {
  const std::string not_ended = "it did not end on ";
  const size_t ranks = errors.find(not_ended);
  const auto says = [&](const std::string& what) {
    return errors.find(what) != std::string::npos;
  };
  return says(name + " failed at step") || says(name + " did not arrive at ") ||
         says(name + ", which had not sent it") ||
         says(name + ", which had not received it") ||
         says(name + ", which had begun to send it") ||
         says(name + ", which had begun to receive it") ||
         (ranks != std::string::npos &&
          errors.find(name, ranks) != std::string::npos);
}

// A debugger holds the training thread; the process's others run. The place
// decides what the watch finds, and each error names the rank: a step that
// waits for nobody (7), a collective or message for which the others wait (3;
// they may report first), or a collective that all launched and that never ends
// (3).
TEST_P(Stalled, ABlockedTrainingThreadIsNamedAndEndsTheRun) {
  const Program program = start_trained(watched());
  const pid_t pid = rank_of(*program, 1);
  ASSERT_GT(pid, 0) << program->output_so_far();
  const pid_t tracer = ::fork();
  if (tracer == 0)
    hold_main_thread(pid);
  const ProgramResult result = program->wait();
  int status = 0;
  ASSERT_EQ(::waitpid(tracer, &status, 0), tracer);
  if (status != 0)
    GTEST_SKIP() << "this process may not trace others";
  EXPECT_TRUE(blames(result.err, GetParam().name_of_rank_1))
      << result.err << analysis();
  EXPECT_THAT(result.exit_code, ::testing::AnyOf(3, 7)) << result.err;
}

// The rank's own thread computes without end, or waits forever.
TEST_P(Stalled, ASpinOrABlockedReadIsNamedAndEndsTheRun) {
  if (!testing::kCanPreload)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
  for (const std::string how : {"spin", "block"}) {
    SCOPED_TRACE(how);
    const Program program =
        start_trained(watched(), 4, testing::failing_rank(1, 6, how));
    const pid_t supervisor = program->pid();
    const ProgramResult result = program->wait();
    EXPECT_EQ(result.exit_code, 7) << result.err;
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr(
                "error: " + GetParam().name_of_rank_1 + " failed at step"),
            HasSubstr("StallError")));
    testing::expect_no_rank_of(supervisor, GetParam().nproc);
  }
}

// Only the deadline of a collective is set.
TEST_P(Stalled, ACollectivesTimeoutNamesTheStoppedRank) {
  const Program program = start_trained(
      {"training.step_timeout_seconds=0",
       "distributed.timeout_seconds=" + std::to_string(kTimeout.count())});
  testing::send_signal(rank_of(*program, 1), SIGSTOP);
  const ProgramResult result = program->wait();
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(
      result.err,
      HasSubstr(
          GetParam().name_of_rank_1 + " did not report: lost or stalled"));
  EXPECT_THAT(
      analysis(), HasSubstr("look first at " + GetParam().name_of_rank_1));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Stalled,
    ::testing::Values(
        Layout{"dp2", {"distributed.dp_size=2"}, "rank 1 (dp 1)"},
        Layout{"tp2", {"distributed.tp_size=2"}, "rank 1 (tp 1)"},
        Layout{"pp2", {"distributed.pp_size=2"}, "rank 1 (pp 1)"},
        Layout{"cp2", {"distributed.cp_size=2"}, "rank 1 (cp 1)"},
        Layout{
            "zero1",
            {"distributed.dp_size=2", "distributed.zero_stage=1"},
            "rank 1 (dp 1)"},
        Layout{
            "dp2_pp2",
            {"distributed.dp_size=2", "distributed.pp_size=2"},
            "rank 1 (dp 0, pp 1)",
            4}),
    [](const auto& each) { return each.param.name; });

class Recorded : public Stalled {};

TEST_P(Recorded, SigquitWritesWhatTheRanksDidAndTheRunGoesOn) {
  const Program program = start_trained(watched(std::chrono::hours(24)));
  testing::send_signal(program->pid(), SIGQUIT);
  EXPECT_TRUE(eventually([&] {
    return fs::exists(run() / "flight" / "rank-0.json") &&
           fs::exists(run() / "flight" / "rank-1.json");
  }));
  EXPECT_THAT(analysis(), HasSubstr("SIGQUIT"));
  const auto now = testing::read_metrics(run()).size();
  EXPECT_TRUE(
      eventually([&] { return has_trained(static_cast<int64_t>(now) + 5); }));
  testing::send_signal(program->pid(), SIGTERM);
  EXPECT_EQ(program->wait().exit_code, 143);
}

// The rank runs a twenty-fifth of the time, in turns far shorter than the
// shortest step so far, so that each step is stopped. The scheduler prefers a
// process that was stopped: on a busy machine its share is larger.
TEST_P(Recorded, ASlowRankIsNamed) {
  if (std::getenv("BRIGADE_LONG_TESTS") == nullptr)
    GTEST_SKIP() << "wants a quiet machine: make test-faults";
  const Program program =
      start_trained({"training.gradient_accumulation_steps=16"});
  const pid_t pid = rank_of(*program, 1);
  const auto is_named = [&] {
    return program->output_so_far().find(
               GetParam().name_of_rank_1 + " is slow") != std::string::npos;
  };
  double step_ms = std::numeric_limits<double>::infinity();
  for (const auto& step : testing::read_metrics(run()))
    step_ms = std::min(step_ms, step.at("step_ms").get<double>());
  const std::chrono::duration<double, std::milli> shortest(step_ms);
  const auto end = Clock::now() + std::chrono::minutes(4);
  while (!is_named() && Clock::now() < end) {
    testing::send_signal(pid, SIGSTOP);
    std::this_thread::sleep_for(1.5 * shortest);
    testing::send_signal(pid, SIGCONT);
    std::this_thread::sleep_for(shortest / 16);
  }
  EXPECT_TRUE(is_named());
  testing::send_signal(program->pid(), SIGTERM);
  program->wait();
}

TEST_P(Recorded, AStalledRunIsRestartedFromItsCheckpoint) {
  Arguments more = watched(std::chrono::seconds(10));
  more.insert(
      more.end(), {"--max-restarts", "1", "checkpoint.save_frequency=3"});
  const Program program = start_trained(more);
  const pid_t first = rank_of(*program, 1);
  testing::send_signal(first, SIGSTOP);
  EXPECT_TRUE(eventually([&] {
    const pid_t second = find_rank(program->pid(), 1);
    return second > 0 && second != first;
  }));
  EXPECT_TRUE(
      eventually([&] { return fs::exists(run() / "flight.previous"); }));
  const auto now = testing::read_metrics(run()).size();
  EXPECT_TRUE(
      eventually([&] { return has_trained(static_cast<int64_t>(now) + 5); }));
  testing::send_signal(program->pid(), SIGTERM);
  const ProgramResult result = program->wait();
  EXPECT_EQ(result.exit_code, 143) << result.err;
  EXPECT_THAT(
      result.err,
      HasSubstr("restart 1 of 1, from the newest valid checkpoint"));
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Recorded,
    ::testing::Values(
        Layout{"dp2", {"distributed.dp_size=2"}, "rank 1 (dp 1)"}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace brigade
