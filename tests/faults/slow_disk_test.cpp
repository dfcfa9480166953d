// What training notices of a save, and in which order a save reaches the disk,
// in real processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <regex>

#include "program_faults.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::Arguments;
using testing::eventually;
using testing::ProgramResult;
using testing::StartedProgram;

class SlowDisk : public ::testing::Test {
 protected:
  SlowDisk() {
    config_ = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(6000)));
    config_["training"] = {
        {"seq_length", 48},
        {"micro_batch_size", 16},
        {"total_train_steps", 100000000},
        {"learning_rate", 5e-3}};
  }
  Arguments arguments(const Arguments& more) const {
    testing::write_file(folder_ / "run.json", config_.dump());
    return testing::train_arguments(folder_ / "run.json", run(), more);
  }
  fs::path run() const { return folder_ / "run"; }
  fs::path checkpoints() const { return run() / "checkpoints"; }

  testing::RunsFolder folder_;
  nlohmann::json config_;
};

class HeldDisk : public SlowDisk, public ::testing::WithParamInterface<int> {};

// Two replicas of one or of two stages; requests travel for two steps.
// bench_checkpoint measures how much a save slows a step.
TEST_P(HeldDisk, TrainingGoesOnWhileADiskTakesNothingOfASave) {
  if (!testing::kCanPreload)
    GTEST_SKIP() << "a sanitizer wants to be the first library";
  config_["distributed"] = {{"dp_size", 2}, {"pp_size", GetParam()}};
  const fs::path gate = folder_ / "gate";
  testing::write_file(gate, "");
  StartedProgram program(
      testing::program_path(),
      arguments({"--nproc", std::to_string(2 * GetParam())}),
      testing::held_disk("/checkpoints/", gate));
  const auto steps = [&] {
    return fs::exists(run() / "metrics.jsonl")
               ? testing::read_metrics(run()).size()
               : 0;
  };
  ASSERT_TRUE(eventually([&] { return steps() >= 5; }));
  testing::send_signal(program.pid(), SIGUSR1);
  const auto has_begun = [&] {
    std::error_code gone;
    for (const auto& entry : fs::directory_iterator(checkpoints(), gone)) {
      if (entry.path().extension() == ".tmp")
        return true;
    }
    return false;
  };
  ASSERT_TRUE(eventually(has_begun));
  // It follows the first one. Only one rank gets it, as a launcher's signals
  // may reach ranks in different steps.
  testing::send_signal(testing::find_rank(program.pid(), 1), SIGUSR1);
  const size_t first = steps();
  EXPECT_TRUE(eventually([&] { return steps() >= first + 50; }));
  EXPECT_TRUE(list_checkpoints(checkpoints()).empty());
  fs::remove(gate);
  EXPECT_TRUE(
      eventually([&] { return list_checkpoints(checkpoints()).size() == 2; }));
  testing::send_signal(program.pid(), SIGINT);
  program.wait();
  testing::expect_only_valid_checkpoints(checkpoints());
}

INSTANTIATE_TEST_SUITE_P(Stages, HeldDisk, ::testing::Values(1, 2));

// The order that the kernel sees; SaveFaults checks it from inside.
TEST_F(SlowDisk, TheKernelSeesSyncsBeforeTheRenameAndTheParentsAfter) {
  if (!fs::exists("/usr/bin/strace"))
    GTEST_SKIP() << "strace is missing: install strace";
  const fs::path trace = folder_ / "trace";
  Arguments all = {
      "-f",
      "-y",
      "-e",
      "trace=fsync,fdatasync,rename,renameat,renameat2",
      "-o",
      trace.string(),
      testing::program_path()};
  for (const std::string& argument : arguments(
           {"training.total_train_steps=2", "checkpoint.save_frequency=2"}))
    all.push_back(argument);
  const ProgramResult result = StartedProgram("strace", all).wait();
  if (result.err.find("ptrace") != std::string::npos)
    GTEST_SKIP() << "this process may not trace others: " << result.err;
  ASSERT_EQ(result.exit_code, 0) << result.err;

  // strace splits a call that another thread interrupts into two lines. The end
  // counts for a sync, the begin for a rename.
  const std::string temporary = (checkpoints() / "2.tmp").string();
  std::map<std::string, std::string> under_way;  // by thread
  std::vector<std::string> calls;
  std::ifstream lines(trace);
  for (std::string line; std::getline(lines, line);) {
    const std::string thread = line.substr(0, line.find(' '));
    if (line.find("<unfinished") != std::string::npos) {
      if (line.find("rename") != std::string::npos)
        calls.push_back(line);
      else
        under_way[thread] = line;
    } else if (line.find("fsync resumed") != std::string::npos) {
      calls.push_back(under_way[thread]);
    } else {
      calls.push_back(line);
    }
  }
  const auto position = [&](const std::string& pattern) {
    const std::regex wanted(pattern);
    for (size_t i = 0; i < calls.size(); ++i) {
      if (std::regex_search(calls[i], wanted))
        return static_cast<int>(i);
    }
    ADD_FAILURE() << pattern;
    return -1;
  };
  const int renamed =
      position("rename[^(]*\\(.*\"" + temporary + "\", .*/checkpoints/2\"");
  for (const std::string name :
       {"model.safetensors", "optimizer.safetensors", "manifest.json"})
    EXPECT_LT(position("sync\\([0-9]+<" + temporary + "/" + name), renamed)
        << name;
  EXPECT_LT(position("sync\\([0-9]+<" + temporary + ">"), renamed);
  const std::regex of_parent("sync\\([0-9]+<" + checkpoints().string() + ">");
  bool is_synced_after = false;
  for (size_t i = static_cast<size_t>(renamed); i < calls.size(); ++i)
    is_synced_after = is_synced_after || std::regex_search(calls[i], of_parent);
  EXPECT_TRUE(is_synced_after);
}

}  // namespace
}  // namespace brigade
