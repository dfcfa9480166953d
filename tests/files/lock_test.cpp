#include "brigade/files/lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "brigade/base/error.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FileLockTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
  const fs::path path_ = folder_ / "a.lock";
};

using File = FileLock::File;

TEST_F(FileLockTest, IsHeldByOneAtATime) {
  auto first = FileLock::try_lock(path_, File::kKeep);
  ASSERT_TRUE(first.has_value());
  EXPECT_FALSE(FileLock::try_lock(path_, File::kKeep).has_value());
  // Moving it does not release it.
  {
    const FileLock moved = std::move(*first);
    EXPECT_FALSE(FileLock::try_lock(path_, File::kKeep).has_value());
  }
  EXPECT_TRUE(FileLock::try_lock(path_, File::kKeep).has_value());
  EXPECT_TRUE(fs::exists(path_));
}

TEST_F(FileLockTest, RemovesItsFileWhenAskedTo) {
  FileLock::try_lock(path_, File::kRemove);
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(FileLockTest, IsReleasedByTheEndOfItsProcess) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FileLock::try_lock(path_, File::kRemove);
    char byte = lock ? 'y' : 'n';
    static_cast<void>(::write(ready[1], &byte, 1));
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_FALSE(FileLock::try_lock(path_, File::kKeep).has_value());
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(FileLock::try_lock(path_, File::kKeep).has_value());
  ::close(ready[0]);
  ::close(ready[1]);
}

// Each waiting thread locks a file that the one before it has removed.
TEST_F(FileLockTest, WaitingNeverLocksAFileThatWasRemoved) {
  std::atomic<int> inside = 0;
  std::atomic<int> together = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) {
        const FileLock lock = FileLock::wait(path_, File::kRemove);
        together += ++inside > 1;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  EXPECT_EQ(together, 0);
}

TEST_F(FileLockTest, AFolderThatDoesNotExistIsNamed) {
  EXPECT_THAT(
      [&] { FileLock::wait(folder_ / "no" / "a.lock", File::kKeep); },
      ThrowsMessage<StorageError>(HasSubstr("no/a.lock")));
}

}  // namespace
}  // namespace brigade
