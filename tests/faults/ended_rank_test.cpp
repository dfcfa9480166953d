// Any rank that ends by itself, in every kind of layout, as real processes:
// everything ends, the first failure is named, and the run continues bit for
// bit. BRIGADE_FAULT_SEEDS=20 repeats it with as many choices of rank, signal
// and moment.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <random>

#include "brigade/checkpoint/checkpoint_folder.h"
#include "brigade/checkpoint/verify.h"
#include "tests/support/program.h"
#include "tests/support/ranks_of_program.h"

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
};

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

  void expect_only_valid_checkpoints(const std::string& name) const {
    const fs::path folder = run(name) / "checkpoints";
    if (!fs::exists(folder))
      return;
    for (const CheckpointEntry& entry : list_checkpoints(folder))
      EXPECT_EQ(find_reason_to_reject(entry.directory, VerifyLevel::kFull), "");
  }

  void end_a_rank(const std::string& name, unsigned seed) {
    std::mt19937 random(seed);
    const int rank =
        static_cast<int>(random() % static_cast<unsigned>(GetParam().nproc));
    const int number =
        std::vector<int>{SIGKILL, SIGSEGV, SIGABRT, SIGILL}[random() % 4];
    const size_t step = 1 + random() % (kStepsOfRun - 10);
    SCOPED_TRACE(
        "seed " + std::to_string(seed) + ": signal " + std::to_string(number) +
        " to rank " + std::to_string(rank) + " after step " +
        std::to_string(step));
    StartedProgram program(testing::program_path(), arguments(name));
    ASSERT_TRUE(eventually([&] { return steps_of(name) >= step; }));
    const pid_t pid = find_rank(program.pid(), rank);
    ASSERT_GT(pid, 0);
    ::kill(pid, number);
    const ProgramResult result = program.wait();
    EXPECT_EQ(result.exit_code, 128 + number) << result.err;
    EXPECT_THAT(
        result.err,
        AllOf(
            HasSubstr("error: rank " + std::to_string(rank) + " ("),
            HasSubstr(" was killed by SIG"),
            HasSubstr(" at step ")));
    for (int other = 0; other < GetParam().nproc; ++other)
      EXPECT_EQ(find_rank(program.pid(), other), -1);
    expect_only_valid_checkpoints(name);
    const ProgramResult resumed =
        StartedProgram(
            testing::program_path(),
            arguments(name, {"checkpoint.load_path=auto"}))
            .wait();
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(losses_of(run(name)), losses_of(run("whole")));
    EXPECT_EQ(weights_of(name), weights_of("whole"));
  }

  // Of all files: layouts write several.
  std::string weights_of(const std::string& name) const {
    const fs::path last =
        run(name) / "checkpoints" / std::to_string(kStepsOfRun);
    std::string bytes;
    for (const std::string file : {"model", "optimizer"}) {
      for (int rank = -1; rank < GetParam().nproc; ++rank) {
        const fs::path path =
            last / (rank < 0 ? file + ".safetensors"
                             : file + "-rank-" + std::to_string(rank) +
                                   ".safetensors");
        if (fs::exists(path))
          bytes += testing::tensor_bytes(path);
      }
    }
    EXPECT_FALSE(bytes.empty());
    return bytes;
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
  for (unsigned seed = 1; seed <= count && !HasFailure(); ++seed) {
    const std::string name = "seed" + std::to_string(seed);
    end_a_rank(name, seed);
    fs::remove_all(run(name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    EndedRank,
    ::testing::Values(
        LayoutOfRanks{"dp2", 2, {"distributed.dp_size=2"}},
        LayoutOfRanks{"tp2", 2, {"distributed.tp_size=2"}},
        LayoutOfRanks{"pp2", 2, {"distributed.pp_size=2"}},
        LayoutOfRanks{"cp2", 2, {"distributed.cp_size=2"}},
        LayoutOfRanks{
            "dp2_pp2",
            4,
            {"distributed.dp_size=2", "distributed.pp_size=2"}}),
    [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace brigade
