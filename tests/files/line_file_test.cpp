#include "brigade/files/line_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class LineFileTest : public ::testing::Test {
 protected:
  LineFileTest() {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    ::signal(SIGXFSZ, SIG_IGN);
  }
  ~LineFileTest() override {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    ::signal(SIGXFSZ, SIG_DFL);
  }
  // Limits file sizes as a disk with that much room would.
  void set_room(rlim_t bytes) const {
    const struct rlimit limit = {bytes, limit_.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }

  const TemporaryFolder folder_;
  struct rlimit limit_ {};
};

TEST_F(LineFileTest, LinesBeforeTheFileIsOpenWait) {
  const fs::path path = folder_ / "a";
  write_text_file(path, "there\n");
  LineFile file;
  file.append("early");
  file.open(path);
  file.append("late");
  EXPECT_EQ(read_text_file(path), "there\nearly\nlate\n");
}

TEST_F(LineFileTest, ALineThatDidNotFitIsWrittenOnceThereIsRoom) {
  const fs::path path = folder_ / "a";
  LineFile file;
  file.open(path);
  file.append("one");
  set_room(6);
  for (const char* line : {"two", "three"}) {
    EXPECT_THAT(
        [&] { file.append(line); },
        ThrowsMessage<StorageError>(
            AllOf(HasSubstr(path.string()), HasSubstr("File too large"))));
  }
  EXPECT_EQ(read_text_file(path), "one\ntw");
  set_room(limit_.rlim_max);
  file.append("four");
  EXPECT_EQ(read_text_file(path), "one\ntwo\nthree\nfour\n");
}

// An ordinary open() would wait for a reader.
TEST_F(LineFileTest, APipeIsRefused) {
  const fs::path path = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(
      [&] { LineFile().open(path); },
      ThrowsMessage<StorageError>(
          HasSubstr(path.string() + "' is not a regular file")));
}

}  // namespace
}  // namespace brigade
