#include "brigade/files/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "brigade/base/error.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FileTest : public ::testing::Test {
 protected:
  const TemporaryFolder folder_;
};

// A child process limits its address space.
TEST_F(FileTest, RunningOutOfMemoryIsNotADataError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer reserves terabytes of address space";
#endif
  const fs::path path = folder_ / "large";
  std::ofstream(path).flush();
  fs::resize_file(path, uintmax_t{1} << 34);  // a hole
  const pid_t child = ::fork();
  if (child == 0) {
    const struct rlimit limit = {rlim_t{1} << 33, rlim_t{1} << 33};
    ::setrlimit(RLIMIT_AS, &limit);
    int code = 99;
    try {
      const MappedFile file(path);
    } catch (const DataError&) {
      code = 98;
    } catch (const Error& error) {
      const bool is_named =
          std::string(error.what()).find("out of memory") != std::string::npos;
      code = is_named ? static_cast<int>(error.code()) : 97;
    }
    ::_exit(code);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kUnexpected));
}

TEST_F(FileTest, AnUncommittedFileLeavesNothing) {
  { AtomicFile(folder_ / "a").write("half"); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(FileTest, ACommittedFileReplacesTheOldOneWhole) {
  write_text_file(folder_ / "a", "old");
  AtomicFile file(folder_ / "a");
  const std::string large(3 << 20, 'x');
  file.write("new");
  file.write(large);
  EXPECT_EQ(read_text_file(folder_ / "a"), "old");
  file.commit();
  EXPECT_EQ(read_text_file(folder_ / "a"), "new" + large);
}

TEST_F(FileTest, PipesFoldersAndDevicesStayAsTheyAre) {
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  fs::create_directory(folder_ / "folder");
  const fs::path link = folder_ / "link";  // and not a device itself
  fs::create_symlink("/dev/null", link);
  for (const fs::path& path : {pipe, folder_ / "folder", link}) {
    const fs::file_type type = fs::symlink_status(path).type();
    EXPECT_THAT(
        [&] {
          AtomicFile file(path);
          file.write(std::string_view("text"));
          file.commit();
        },
        ThrowsMessage<StorageError>(
            HasSubstr(path.string() + "': it is no regular")))
        << path;
    EXPECT_EQ(fs::symlink_status(path).type(), type);
  }
}

TEST_F(FileTest, AMissingFileIsNamedInTheError) {
  EXPECT_THAT(
      [&] { MappedFile file(folder_ / "absent"); },
      ThrowsMessage<DataError>(HasSubstr((folder_ / "absent").string())));
}

TEST_F(FileTest, AFolderThatIsMissingIsAStorageErrorThatNamesIt) {
  EXPECT_THAT(
      [&] { AtomicFile file(folder_ / "no_such_folder" / "a"); },
      ThrowsMessage<StorageError>(HasSubstr("no_such_folder")));
}

TEST_F(FileTest, AnEmptyFileMapsToNoBytes) {
  write_text_file(folder_ / "empty", "");
  EXPECT_EQ(MappedFile(folder_ / "empty").bytes().size(), 0U);
}

}  // namespace
}  // namespace brigade
