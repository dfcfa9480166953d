#include "brigade/files/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class FolderLockTest : public ::testing::Test {
 protected:
  // The refusal; "" if the lock was free.
  std::string try_lock(const FolderLockOptions& options = {}) const {
    return message_of<ConfigError>(
        [&] { const FolderLock lock(folder_, "the run folder", options); });
  }

  const TemporaryFolder folder_;
};

TEST_F(FolderLockTest, ASecondHolderIsRefusedAndToldWhoHoldsIt) {
  {
    const FolderLock lock(folder_, "the run folder");
    EXPECT_THAT(
        try_lock(),
        AllOf(
            HasSubstr(folder_.path().string()),
            HasSubstr("process " + std::to_string(::getpid())),
            HasSubstr("on host "),
            HasSubstr("started at ")));
  }
  EXPECT_EQ(try_lock(), "");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FolderLockTest, AKilledHolderHoldsNothing) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const FolderLock lock(folder_, "the run folder");
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(try_lock(), HasSubstr("process " + std::to_string(child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder_ / "lock"));
  EXPECT_EQ(try_lock(), "");
}

// On a file system whose locks are not shared between hosts, only the file says
// who holds it.
class LockOfAnotherHost : public FolderLockTest {
 protected:
  LockOfAnotherHost() {
    std::ofstream(folder_ / "lock");
    write_beat(0);
  }
  void write_beat(int beat) const {
    const nlohmann::json holder = {
        {"host", "another"},
        {"pid", 4321},
        {"start", "yesterday"},
        {"heartbeat", beat}};
    // Written in place: nobody holds an empty file.
    std::fstream file(folder_ / "lock", std::ios::in | std::ios::out);
    file << holder.dump() << "\n";
  }
};

TEST_F(LockOfAnotherHost, IsHonouredWhileItsHeartBeats) {
  std::atomic<bool> stopping = false;
  std::thread holder([&] {
    for (int beat = 1; !stopping; ++beat) {
      write_beat(beat);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  EXPECT_THAT(
      try_lock({.stale = std::chrono::seconds(20)}),
      AllOf(HasSubstr("process 4321 on host another"), HasSubstr("yesterday")));
  stopping = true;
  holder.join();
}

TEST_F(LockOfAnotherHost, IsTakenOverOnceItsHeartStandsStill) {
  EXPECT_EQ(try_lock({.stale = std::chrono::milliseconds(40)}), "");
}

TEST_F(FolderLockTest, TheHolderShowsThatItLives) {
  const FolderLock lock(
      folder_, "the run folder", {.heartbeat = std::chrono::milliseconds(1)});
  const std::string first = read_text_file(folder_ / "lock");
  while (read_text_file(folder_ / "lock") == first)
    std::this_thread::yield();
}

}  // namespace
}  // namespace brigade
