#include "brigade/files/file.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "brigade/base/error.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  FileTest() {
    std::string pattern = fs::temp_directory_path() / "brigade_file_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~FileTest() override { fs::remove_all(folder_); }
  fs::path folder_;
};

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

TEST_F(FileTest, AMissingFileIsNamedInTheError) {
  try {
    MappedFile file(folder_ / "absent");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(
        std::string(error.what()).find((folder_ / "absent").string()),
        std::string::npos);
  }
}

TEST_F(FileTest, AFolderThatIsMissingIsAStorageErrorThatNamesIt) {
  try {
    AtomicFile file(folder_ / "no_such_folder" / "a");
    FAIL();
  } catch (const StorageError& error) {
    EXPECT_NE(
        std::string(error.what()).find("no_such_folder"), std::string::npos);
  }
}

TEST_F(FileTest, AnEmptyFileMapsToNoBytes) {
  write_text_file(folder_ / "empty", "");
  EXPECT_EQ(MappedFile(folder_ / "empty").bytes().size(), 0U);
}

}  // namespace
}  // namespace brigade
