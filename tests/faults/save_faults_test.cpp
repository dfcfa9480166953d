// A save that is killed or gets an error at any single call, or is killed at
// any moment: earlier checkpoints stay valid, and nothing invalid becomes
// visible.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "brigade/base/error.h"
#include "brigade/checkpoint/verify.h"
#include "faulty_disk.h"
#include "made_checkpoint.h"
#include "tests/support/message_of.h"
#include "tests/support/program.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using testing::holds_values_of;
using testing::save_made;

class SaveFaults : public ::testing::Test {
 protected:
  SaveFaults() : folder_(temporary_.path() / "checkpoints") {
    at::set_num_threads(1);
    fs::create_directory(folder_);
  }
  ~SaveFaults() override { testing::disarm_disk(); }

  // The calls of an undisturbed save of `step`.
  std::vector<std::string> count_calls(int64_t step) {
    testing::arm_disk({.path_part = folder_.string()});
    save_made(folder_, step, "rewritten");
    auto calls = testing::disk_calls();
    testing::disarm_disk();
    return calls;
  }

  // Saves in another process, which is killed at that call.
  void save_and_die(int64_t step, int at) {
    const pid_t child = ::fork();
    if (child == 0) {
      testing::arm_disk({.path_part = folder_.string(), .at = at});
      save_made(folder_, step, "rewritten");
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << at;
  }

  std::vector<int64_t> visible_steps() const {
    std::vector<int64_t> steps;
    for (const CheckpointEntry& entry : list_checkpoints(folder_)) {
      EXPECT_EQ(find_reason_to_reject(entry.directory, VerifyLevel::kFull), "");
      EXPECT_TRUE(holds_values_of(entry.directory, entry.step));
      steps.push_back(entry.step);
    }
    return steps;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    return names;
  }

  TemporaryFolder temporary_;
  fs::path folder_;
};

TEST_F(SaveFaults, AKillAtAnyCallOfANewStepLeavesTheOneBefore) {
  save_made(folder_, 1);
  const int calls = static_cast<int>(count_calls(2).size());
  ASSERT_GT(calls, 15);
  for (int at = 1; at <= calls; ++at) {
    SCOPED_TRACE(at);
    fs::remove_all(folder_ / "2");
    save_and_die(2, at);
    const auto steps = visible_steps();
    EXPECT_TRUE(
        steps == std::vector<int64_t>({1}) ||
        steps == std::vector<int64_t>({1, 2}));
    clean_up_saves(folder_);
    for (const std::string& name : names())
      EXPECT_FALSE(name.ends_with(".tmp")) << name;
    save_made(folder_, 2);
    EXPECT_EQ(visible_steps(), std::vector<int64_t>({1, 2}));
  }
}

// Kills inside of calls and between them too.
TEST_F(SaveFaults, AKillAtAnyMomentLeavesWhatWasValid) {
  const int moments = ::getenv("BRIGADE_LONG_TESTS") == nullptr ? 40 : 200;
  using Clock = std::chrono::steady_clock;
  save_made(folder_, 1);
  const auto begin = Clock::now();
  save_made(folder_, 2);
  const auto whole = Clock::now() - begin;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> part(0, 1.2);
  for (int moment = 0; moment < moments; ++moment) {
    SCOPED_TRACE(moment);
    const bool exists = moment % 2 == 1;
    if (!exists)
      fs::remove_all(folder_ / "2");
    const pid_t child = ::fork();
    if (child == 0) {
      save_made(folder_, 2, "rewritten");
      ::_exit(0);
    }
    ASSERT_GT(child, 1);
    std::this_thread::sleep_for(part(random) * whole);
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto steps = visible_steps();
    EXPECT_TRUE(
        steps == std::vector<int64_t>({1, 2}) ||
        (!exists && steps == std::vector<int64_t>({1})));
    clean_up_saves(folder_);
    save_made(folder_, 2);
  }
}

TEST_F(SaveFaults, AKillAtAnyCallOfAnExistingStepLeavesTheOldOrTheNewOne) {
  save_made(folder_, 2);
  const int calls = static_cast<int>(count_calls(2).size());
  int rewritten = 0;
  for (int at = 1; at <= calls; ++at) {
    SCOPED_TRACE(at);
    save_made(folder_, 2, "first");
    save_and_die(2, at);
    EXPECT_EQ(visible_steps(), std::vector<int64_t>({2}));
    rewritten += read_manifest(folder_ / "2").run == "rewritten" ? 1 : 0;
    clean_up_saves(folder_);
    EXPECT_EQ(visible_steps(), std::vector<int64_t>({2}));
  }
  // Both outcomes occurred.
  EXPECT_GT(rewritten, 0);
  EXPECT_LT(rewritten, calls);
}

TEST_F(SaveFaults, AnErrorOfAnyCallIsReportedAndTheNextSaveWorks) {
  save_made(folder_, 1);
  const auto calls = count_calls(2);
  for (const int error : {EIO, ENOSPC}) {
    for (int at = 1; at <= static_cast<int>(calls.size()); ++at) {
      const std::string& call = calls[static_cast<size_t>(at - 1)];
      SCOPED_TRACE(call);
      if (call.starts_with("unlink"))
        continue;
      fs::remove_all(folder_ / "2");
      testing::arm_disk(
          {.path_part = folder_.string(), .at = at, .error = error});
      const std::string message =
          message_of<StorageError>([&] { save_made(folder_, 2); });
      testing::disarm_disk();
      EXPECT_THAT(message, ::testing::HasSubstr(strerror(error)));
      EXPECT_THAT(message, ::testing::HasSubstr(folder_.string()));
      const auto steps = visible_steps();
      ASSERT_FALSE(steps.empty());
      EXPECT_EQ(steps.front(), 1);
      EXPECT_FALSE(fs::exists(folder_ / "2.tmp"));
      save_made(folder_, 2);
      EXPECT_EQ(visible_steps(), std::vector<int64_t>({1, 2}));
    }
  }
}

TEST_F(SaveFaults, AnErrorWhileAStepIsRewrittenLeavesTheOldOneValid) {
  save_made(folder_, 2);
  const auto calls = count_calls(2);
  for (int at = 1; at <= static_cast<int>(calls.size()); ++at) {
    SCOPED_TRACE(calls[static_cast<size_t>(at - 1)]);
    testing::arm_disk({.path_part = folder_.string(), .at = at, .error = EIO});
    try {
      save_made(folder_, 2);
    } catch (const StorageError&) {
      // Some calls only remove old files.
    }
    testing::disarm_disk();
    EXPECT_EQ(visible_steps(), std::vector<int64_t>({2}));
    clean_up_saves(folder_);
  }
}

TEST_F(SaveFaults, ADiskThatBecomesReadOnlyIsReportedAndComesBack) {
  const fs::path disk = temporary_.path() / "disk";
  fs::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=8m") != 0)
    GTEST_SKIP() << "mounting a tmpfs takes root: " << strerror(errno);
  save_made(disk, 1);
  ASSERT_EQ(
      ::mount(nullptr, disk.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr),
      0);
  EXPECT_THAT(
      [&] { save_made(disk, 2); },
      ::testing::ThrowsMessage<StorageError>(
          ::testing::HasSubstr("Read-only file system")));
  EXPECT_EQ(find_reason_to_reject(disk / "1", VerifyLevel::kFull), "");
  ASSERT_EQ(::mount(nullptr, disk.c_str(), nullptr, MS_REMOUNT, nullptr), 0);
  save_made(disk, 2);
  EXPECT_EQ(find_reason_to_reject(disk / "2", VerifyLevel::kFull), "");
  EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

TEST_F(SaveFaults, AFileInPlaceOfAFolderIsReplacedOrReported) {
  // Files stand in place of the temporary folder and of the step's folder.
  write_bytes(folder_ / "1.tmp", "not a folder");
  write_bytes(folder_ / "1", "not a folder either");
  save_made(folder_, 1);
  EXPECT_EQ(visible_steps(), std::vector<int64_t>({1}));
  // A file stands in place of the folder of all checkpoints.
  const fs::path file = temporary_.path() / "file";
  write_bytes(file, "the user's");
  EXPECT_THROW(save_made(file, 2), StorageError);
  EXPECT_EQ(testing::read_file(file), "the user's");
}

TEST_F(SaveFaults, LinksAreReplacedAndWhatTheyNameIsLeftAlone) {
  const fs::path elsewhere = temporary_.path() / "elsewhere";
  fs::create_directory(elsewhere);
  save_made(elsewhere, 2, "another run");
  fs::create_directory_symlink(elsewhere / "2", folder_ / "2");
  fs::create_directory_symlink(elsewhere, folder_ / "2.tmp");
  save_made(folder_, 2);
  EXPECT_FALSE(fs::is_symlink(folder_ / "2"));
  EXPECT_EQ(read_manifest(folder_ / "2").run, "this run");
  EXPECT_EQ(read_manifest(elsewhere / "2").run, "another run");
  // The folder of all checkpoints may be a link.
  const fs::path link = temporary_.path() / "link";
  fs::create_directory_symlink(folder_, link);
  save_made(link, 3);
  EXPECT_EQ(visible_steps(), std::vector<int64_t>({2, 3}));
}

// Every file is synced before the directory takes its name, and the parent
// after it: a crash of the machine loses no reported checkpoint.
TEST_F(SaveFaults, FilesAreSyncedBeforeTheRenameAndTheParentAfter) {
  const auto calls = count_calls(3);
  const auto position = [&](const std::string& call) {
    const auto found = std::find(calls.begin(), calls.end(), call);
    EXPECT_NE(found, calls.end()) << call;
    return found - calls.begin();
  };
  const std::string temporary = (folder_ / "3.tmp").string();
  const auto renamed = position("rename " + temporary);
  int synced = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool is_file = calls[i].starts_with("fsync " + temporary + "/");
    synced += is_file ? 1 : 0;
    if (is_file || calls[i].starts_with("write " + temporary)) {
      EXPECT_LT(static_cast<long>(i), renamed) << calls[i];
    }
  }
  EXPECT_EQ(synced, 3);  // two tensor files and the manifest
  EXPECT_LT(position("fsync " + temporary), renamed);
  EXPECT_GT(position("fsync " + folder_.string()), renamed);
}

}  // namespace
}  // namespace brigade
