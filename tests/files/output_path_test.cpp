#include "brigade/files/output_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/files/read_once.h"
#include "brigade/files/usual_path.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class OutputPath : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

// Renaming a file over it would replace the device.
TEST_F(OutputPath, ADeviceIsWrittenAndStaysADevice) {
  write_text_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(
      message_of<StorageError>([] { write_text_file("/dev/full", "text"); }),
      HasSubstr("cannot write '/dev/full': No space left on device"));
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

TEST_F(OutputPath, APipeTakesTheTextAndGivesIt) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(is_read_once(pipe));
  const std::string sent(200'000, 'x');
  std::thread writer([&] { write_text_file(pipe, sent); });
  std::ifstream file(pipe);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  writer.join();
  EXPECT_EQ(text, sent);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(OutputPath, UnwritablePathsAreReportedBeforeAndNothingIsLeft) {
  const fs::path nowhere = folder_ / "no" / "file";
  EXPECT_THAT(
      message_of<StorageError>([&] { check_writable(nowhere); }),
      HasSubstr("cannot write '" + nowhere.string() + "': No such file"));
  EXPECT_THAT(
      message_of<StorageError>([&] { check_writable(folder_); }),
      HasSubstr("Is a directory"));
  check_writable(folder_ / "new");
  check_writable("/dev/full");
  EXPECT_TRUE(fs::is_empty(folder_));
  std::ofstream(folder_ / "file") << "text";
  check_writable(folder_ / "file");
  EXPECT_EQ(read_text_file(folder_ / "file"), "text");
}

TEST_F(OutputPath, AFileOfAnotherKindIsNotReplaced) {
  const fs::path file = folder_ / "file";
  check_writable(file, "GGUF");
  for (const char* replaced : {"", "GGUF", "GGUF of before"}) {
    write_text_file(file, replaced);
    check_writable(file, "GGUF");
  }
  check_writable("/dev/null", "GGUF");
  fs::create_symlink(file, folder_ / "link");
  for (const char* kept : {"{}", "GGU", "weights"}) {
    write_text_file(file, kept);
    for (const fs::path& path : {file, folder_ / "link"})
      EXPECT_THAT(
          message_of<ConfigError>([&] { check_writable(path, "GGUF"); }),
          HasSubstr("'" + file.string() + "' holds something else"));
  }
}

TEST_F(OutputPath, AFolderThatCannotBeMadeIsReportedBefore) {
  check_can_make(folder_ / "a" / "b");
  check_can_make(folder_ / "a" / "");
  EXPECT_TRUE(fs::is_empty(folder_));
  std::ofstream(folder_ / "file") << "text";
  EXPECT_THAT(
      message_of<StorageError>([&] { check_can_make(folder_ / "file" / "b"); }),
      HasSubstr("cannot make '" + (folder_ / "file" / "b").string() + "'"));
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(
      message_of<StorageError>([&] { check_can_make(folder_ / "loop" / "b"); }),
      HasSubstr("Too many levels of symbolic links"));
}

TEST_F(OutputPath, WritesTheTargetOfALinkAndNamesALoop) {
  fs::create_directory(folder_ / "inner");
  fs::create_symlink("inner/file", folder_ / "link");
  check_writable(folder_ / "link");
  write_text_file(folder_ / "link", "text");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_EQ(read_text_file(folder_ / "inner" / "file"), "text");
  fs::create_symlink("loop", folder_ / "loop");
  for (const fs::path& path : {folder_ / "loop", folder_ / "loop" / "file"}) {
    EXPECT_THAT(
        message_of<StorageError>([&] { check_writable(path); }),
        HasSubstr(
            "Too many levels of symbolic links: '" +
            (folder_ / "loop").string() + "'"));
  }
}

TEST_F(OutputPath, APipeThatNobodyReadsIsRefusedBefore) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(
      message_of<StorageError>([&] { check_writable(pipe); }),
      HasSubstr("it is a pipe (FIFO) that nobody reads"));
}

TEST_F(OutputPath, ReadingNamesAPathThatIsNoFile) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("loop", folder_ / "loop");
  std::ofstream(folder_ / "file") << "text";
  EXPECT_TRUE(has_file(folder_ / "file"));
  EXPECT_FALSE(has_file(folder_ / "nothing"));
  EXPECT_THAT(
      [&] { has_file(folder_ / "pipe"); },
      ThrowsMessage<DataError>(HasSubstr("pipe' is not a regular file")));
  EXPECT_THAT(
      [&] { has_file(folder_ / "loop"); },
      ThrowsMessage<DataError>(
          HasSubstr("Too many levels of symbolic links: '")));
}

}  // namespace
}  // namespace brigade
