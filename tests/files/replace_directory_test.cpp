#include "brigade/files/replace_directory.h"

#include <gtest/gtest.h>

#include <string>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

class ReplaceDirectory : public ::testing::Test {
 protected:
  fs::path make(const std::string& name, const std::string& text) const {
    fs::create_directory(folder_ / name);
    write_text_file(folder_ / name / "file", text);
    return folder_ / name;
  }
  std::string text_of(const std::string& name) const {
    return read_text_file(folder_ / name / "file");
  }
  const TemporaryFolder folder_;
};

TEST_F(ReplaceDirectory, TakesAFreeName) {
  replace_directory(make("a.tmp", "new"), folder_ / "a");
  EXPECT_EQ(text_of("a"), "new");
  EXPECT_FALSE(fs::exists(folder_ / "a.tmp"));
}

TEST_F(ReplaceDirectory, TakesTheNameOfAnother) {
  make("a", "old");
  replace_directory(make("a.tmp", "new"), folder_ / "a");
  EXPECT_EQ(text_of("a"), "new");
  EXPECT_FALSE(fs::exists(folder_ / "a.tmp"));
}

TEST_F(ReplaceDirectory, FailsWithoutHarmWhenThereIsNothingToMove) {
  make("a", "old");
  EXPECT_THROW(
      replace_directory(folder_ / "absent", folder_ / "a"), StorageError);
  EXPECT_EQ(text_of("a"), "old");
}

TEST_F(ReplaceDirectory, BringsBackWhatAKillLeftUnderTheOldName) {
  make("a.old", "old");
  finish_replacing(folder_ / "a");
  EXPECT_EQ(text_of("a"), "old");
  make("a.old", "older");
  finish_replacing(folder_ / "a");
  EXPECT_EQ(text_of("a"), "old");
  EXPECT_FALSE(fs::exists(folder_ / "a.old"));
}

// The test vectors of FIPS 180-2.
TEST(Sha256, IsThatOfTheStandardHoweverTheBytesCome) {
  const std::string abc =
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  EXPECT_EQ(sha256_of_text("abc"), abc);
  EXPECT_EQ(
      sha256_of_text(""),
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  Sha256 hash;
  hash.add("a", 1);
  hash.add("bc", 2);
  EXPECT_EQ(hash.finish(), abc);
}

}  // namespace
}  // namespace brigade
