// Too little memory for one rank or for the whole job: everything ends, and
// memory is named as the cause.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "program_faults.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using testing::Arguments;
using testing::eventually;
using testing::find_rank;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::StartedProgram;

// sh -c 'ulimit -v KIB; exec brigade ...'
ProgramResult run_limited(
    int64_t address_space_kib,
    const Arguments& arguments,
    const testing::Variables& variables = {}) {
  Arguments all = {
      "-c",
      fmt::format("ulimit -v {}; exec \"$@\"", address_space_kib),
      "sh",
      testing::program_path()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return StartedProgram("sh", all, variables).wait();
}

// OpenBLAS' threads allocate when they start; one that gets no memory retries
// forever, and the destructor would wait for it at exit.
TEST(AddressSpace, OpenBlasThreadsWithoutMemoryDoNotKeepTheProgramFromEnding) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reserves terabytes of address space";
#endif
  const Arguments nothing_to_do = {"train", "--help"};
  // The smallest limit with which the program runs, without such threads.
  int64_t too_little = 0;
  int64_t enough = int64_t{16} << 20;
  while (enough - too_little > 4096) {
    const int64_t middle = (too_little + enough) / 2;
    const ProgramResult result =
        run_limited(middle, nothing_to_do, {{"OPENBLAS_NUM_THREADS", "1"}});
    (result.exit_code == 0 ? enough : too_little) = middle;
  }
  // Just above it a thread fits, but not the 128 MiB that it allocates.
  for (int64_t mib = 0; mib <= 160; mib += 16) {
    run_limited(
        enough + mib * 1024, nothing_to_do, {{"OPENBLAS_NUM_THREADS", "4"}});
  }
}

class MemoryLimit : public ::testing::Test {
 protected:
  MemoryLimit() {
    config_ = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config_["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 4},
        {"total_train_steps", 100000000},
        {"learning_rate", 5e-3}};
    config_["distributed"]["dp_size"] = 2;
    config_["checkpoint"]["save_frequency"] = 5;
  }
  Arguments arguments(const Arguments& more = {}) const {
    testing::write_file(folder_ / "run.json", config_.dump());
    Arguments all = {
        "train",
        "--config",
        (folder_ / "run.json").string(),
        "--nproc",
        "2",
        "logging.run_dir=" + run().string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  fs::path run() const { return folder_ / "run"; }
  size_t steps() const {
    return fs::exists(run() / "metrics.jsonl")
               ? testing::read_metrics(run()).size()
               : 0;
  }

  testing::RunsFolder folder_;
  nlohmann::json config_;
};

// A 2 GB model in an address space little larger than the libraries.
TEST_F(MemoryLimit, ARankWithoutAddressSpaceReportsMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reserves terabytes of address space";
#endif
  // The libraries' own need is searched: a CUDA build's are the largest.
  int64_t limit_kib = int64_t{1800} << 10;
  while (run_limited(limit_kib, arguments({"training.total_train_steps=1"}))
             .exit_code != 0) {
    ASSERT_LT(limit_kib, int64_t{32} << 20);
    limit_kib += limit_kib / 4;
  }
  fs::remove_all(run());
  config_["model"]["config"]["hidden_size"] = 2048;
  config_["model"]["config"]["intermediate_size"] = 8192;
  const ProgramResult result = run_limited(limit_kib, arguments());
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_THAT(
      result.err, AnyOf(HasSubstr("not enough memory"), HasSubstr("memory")));
  EXPECT_THAT(result.err, HasSubstr("error: rank "));
}

// Only the rank's address space is limited while it trains, so that the next
// save's thread or allocation is refused.
TEST_F(MemoryLimit, ARanksLimitLeavesOnlyValidCheckpoints) {
  StartedProgram program(testing::program_path(), arguments());
  const pid_t supervisor = program.pid();
  ASSERT_TRUE(eventually([&] { return steps() >= 7; }));
  const pid_t pid = find_rank(supervisor, 1);
  ASSERT_GT(pid, 0);
  const struct rlimit none = {1 << 20, 1 << 20};
  ASSERT_EQ(::prlimit(pid, RLIMIT_AS, &none, nullptr), 0);
  // The rank lives with what it has, or it ends the run.
  const size_t before = steps();
  const bool goes_on = eventually([&] {
    return steps() >= before + 30 || find_rank(supervisor, 1) != pid;
  });
  EXPECT_TRUE(goes_on);
  testing::send_signal(supervisor, SIGTERM);
  const ProgramResult result = program.wait();
  EXPECT_THAT(result.exit_code, AnyOf(128 + SIGTERM, 1, 6, 128 + SIGABRT))
      << result.err;
  testing::expect_no_rank_of(supervisor, 2);
  testing::expect_only_valid_checkpoints(run() / "checkpoints");
}

// A control group with a memory limit, removed at the end when it is empty.
class ControlGroup {
 public:
  explicit ControlGroup(int64_t limit_bytes) {
    const std::string name = fmt::format("brigade_test_{}", ::getpid());
    for (const fs::path parent : {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"}) {
      std::error_code error;
      if (!fs::create_directory(parent / name, error) || error)
        continue;
      folder_ = parent / name;
      for (const char* file : {"memory.limit_in_bytes", "memory.max"}) {
        if (!fs::exists(folder_ / file))
          continue;
        std::ofstream out(folder_ / file);
        out << limit_bytes << std::flush;
        is_usable_ = out.good();
        // No swap, where it is counted separately.
        std::ofstream(folder_ / "memory.swap.max") << 0;
        return;
      }
      fs::remove(folder_, error);
      folder_.clear();
    }
  }
  ~ControlGroup() {
    std::error_code ignored;
    if (!folder_.empty())
      eventually([&] { return fs::remove(folder_, ignored); });
  }
  bool is_usable() const { return is_usable_; }
  void add(pid_t pid) const {
    std::ofstream(folder_ / "cgroup.procs") << pid << std::flush;
  }
  std::string shell_line() const {
    return "echo $$ > " + (folder_ / "cgroup.procs").string();
  }

 private:
  fs::path folder_;
  bool is_usable_ = false;
};

TEST_F(MemoryLimit, TheControlGroupsLimitEndsTheRunWithTheKernelsReason) {
  const ControlGroup group(int64_t{600} << 20);
  if (!group.is_usable())
    GTEST_SKIP() << "no memory control group can be made here: needs root";
  // 0.8 GB of weights, moments and gradients, in the copies of two ranks.
  config_["model"]["config"]["hidden_size"] = 1024;
  config_["model"]["config"]["intermediate_size"] = 4096;
  Arguments all = {
      "-c",
      group.shell_line() + "; exec \"$@\"",
      "sh",
      testing::program_path()};
  for (const std::string& argument : arguments())
    all.push_back(argument);
  StartedProgram program("sh", all);
  const pid_t supervisor = program.pid();
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 128 + SIGKILL) << result.err;
  testing::expect_no_rank_of(supervisor, 2);
  // Fails if the kernel killed the supervisor instead.
  EXPECT_THAT(result.err, HasSubstr("was killed by SIGKILL (9)"));
  EXPECT_THAT(
      result.err, HasSubstr("the kernel does that when memory runs out"));
}

}  // namespace
}  // namespace brigade
