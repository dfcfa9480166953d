// Any rank that ends by itself, in every kind of layout, as real processes: all
// processes end, the first failure is named, and the run continues bit for bit.
// BRIGADE_FAULT_SEEDS=20 repeats it with as many choices of rank, signal and
// moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>
#include <vector>

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
using testing::ProgramResult;
using testing::StartedProgram;

constexpr size_t kStepsOfRun = 40;

struct LayoutOfRanks {
  std::string name;
  int nproc;
  Arguments sizes;
  unsigned first_seed;
};

// A signal from outside, or a failure in the middle of a step.
struct EndOfRank {
  int signal;       // sent to the rank; 0: none
  std::string how;  // for failing_rank(); "": none
  int exit_code;
  std::string message;  // after "error: rank K (...) "
};

const std::vector<EndOfRank> kEnds = {
    {SIGKILL, "", 137, "was killed by SIGKILL (9) at step"},
    {0, "throw", 1, "failed at step"},
    {SIGSEGV, "", 139, "was killed by SIGSEGV (11) at step"},
    {0, "exit", 7, "exited with code 7 at step"},
    {SIGABRT, "", 134, "was killed by SIGABRT (6) at step"},
    {0, "abort", 134, "was killed by SIGABRT (6) at step"},
    {0, "fault", 139, "was killed by SIGSEGV (11) at step"},
    {SIGILL, "", 132, "was killed by SIGILL (4) at step"}};

class EndedRank : public ::testing::TestWithParam<LayoutOfRanks> {
 protected:
  EndedRank() {
    auto config = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", kStepsOfRun},
        {"learning_rate", 5e-3}};
    config["checkpoint"] = {{"save_frequency", 4}};
    testing::write_file(folder_ / "run.json", config.dump());
  }

  fs::path run(const std::string& name) const { return folder_ / name; }

  Arguments arguments(const std::string& name, const Arguments& more = {}) {
    Arguments all = {
        "train",
        "--config",
        (folder_ / "run.json").string(),
        "--nproc",
        std::to_string(GetParam().nproc),
        "logging.run_dir=" + run(name).string()};
    all.insert(all.end(), GetParam().sizes.begin(), GetParam().sizes.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  size_t steps_of(const std::string& name) const {
    const fs::path metrics = run(name) / "metrics.jsonl";
    return fs::exists(metrics) ? testing::read_metrics(run(name)).size() : 0;
  }

  void end_a_rank(const std::string& name, unsigned seed) {
    std::mt19937 random(seed);
    const int rank =
        static_cast<int>(random() % static_cast<unsigned>(GetParam().nproc));
    const size_t step = 1 + random() % (kStepsOfRun - 10);
    const EndOfRank& end = kEnds[seed % kEnds.size()];
    const bool is_inside = !end.how.empty();
    if (is_inside && !testing::kCanPreload)
      return;
    SCOPED_TRACE(fmt::format(
        "seed {}: signal {} or {} of rank {} at step {}",
        seed,
        end.signal,
        is_inside ? end.how : "nothing",
        rank,
        step));
    // A rank that gets a signal waits for it before the run's last step.
    testing::Variables fault;
    if (is_inside)
      fault = testing::failing_rank(rank, static_cast<int>(step), end.how);
    else if (testing::kCanPreload)
      fault = testing::failing_rank(rank, int{kStepsOfRun} - 1, "block");
    StartedProgram program(testing::program_path(), arguments(name), fault);
    const pid_t supervisor = program.pid();
    if (!is_inside) {
      ASSERT_TRUE(eventually([&] { return steps_of(name) >= step; }));
      const pid_t pid = find_rank(supervisor, rank);
      ASSERT_GT(pid, 0);
      testing::send_signal(pid, end.signal);
    }
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit_code, end.exit_code) << result.err;
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr("error: rank " + std::to_string(rank) + " ("),
            HasSubstr(end.message)));
    testing::expect_no_rank_of(supervisor, GetParam().nproc);
    testing::expect_only_valid_checkpoints(run(name) / "checkpoints");
    const ProgramResult resumed =
        StartedProgram(
            testing::program_path(),
            arguments(name, {"checkpoint.load_path=auto"}))
            .wait();
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(losses_of(run(name)), losses_of(run("whole")));
    EXPECT_TRUE(weights_of(name) == weights_of("whole"));
  }

  std::string weights_of(const std::string& name) const {
    return testing::all_tensor_bytes(
        run(name) / "checkpoints" / std::to_string(kStepsOfRun));
  }

  testing::RunsFolder folder_;
};

TEST_P(EndedRank, EndsTheRunWhichContinuesBitForBit) {
  const ProgramResult whole =
      StartedProgram(testing::program_path(), arguments("whole")).wait();
  ASSERT_EQ(whole.exit_code, 0) << whole.err;
  const char* seeds = ::getenv("BRIGADE_FAULT_SEEDS");
  const unsigned count =
      seeds == nullptr ? 1 : static_cast<unsigned>(std::stoi(seeds));
  // Each layout starts with another kind of end, so that together they cover
  // most.
  const unsigned first = GetParam().first_seed;
  for (unsigned seed = first; seed < first + count && !HasFailure(); ++seed) {
    const std::string name = "seed" + std::to_string(seed);
    end_a_rank(name, seed);
    fs::remove_all(run(name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    EndedRank,
    ::testing::Values(
        LayoutOfRanks{"dp2", 2, {"distributed.dp_size=2"}, 0},
        LayoutOfRanks{"tp2", 2, {"distributed.tp_size=2"}, 1},
        LayoutOfRanks{"pp2", 2, {"distributed.pp_size=2"}, 3},
        LayoutOfRanks{"cp2", 2, {"distributed.cp_size=2"}, 6},
        LayoutOfRanks{
            "zero1",
            2,
            {"distributed.dp_size=2", "distributed.zero_stage=1"},
            5},
        LayoutOfRanks{
            "dp2_pp2",
            4,
            {"distributed.dp_size=2", "distributed.pp_size=2"},
            2}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace brigade
