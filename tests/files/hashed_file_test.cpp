// Files that are hashed while they are written in pieces of any size.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "brigade/files/file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

// A disk, and a file system that may refuse direct writes.
class HashedFile : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    path_ = fs::path(GetParam()) /
            ("brigade_hashed_file_" + std::to_string(::getpid()));
  }
  void TearDown() override { fs::remove(path_); }

  // Written in pieces of `piece_bytes`, the file holds `text` and has its
  // digest.
  void expect_written(const std::string& text, size_t piece_bytes) const {
    SCOPED_TRACE(
        std::to_string(text.size()) + " bytes by " +
        std::to_string(piece_bytes));
    AtomicFile file(path_, Digest::kSha256);
    for (size_t at = 0; at < text.size(); at += piece_bytes)
      file.write(std::string_view(text).substr(at, piece_bytes));
    EXPECT_EQ(file.written_bytes(), text.size());
    file.commit();
    EXPECT_EQ(file.digest(), (FileDigest{text.size(), sha256_of_text(text)}));
    EXPECT_EQ(read_text_file(path_), text);
  }

  fs::path path_;
};

TEST_P(HashedFile, HoldsWhatWasWrittenAndKnowsItsDigest) {
  constexpr size_t kMiB = 1 << 20;
  std::string text(37 * kMiB + 12345, '\0');
  uint64_t state = 1;
  for (char& c : text) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    c = static_cast<char>(state >> 56);
  }
  expect_written("", 1);
  expect_written("abc", 2);
  expect_written(text.substr(0, 4 * kMiB), text.size());
  expect_written(text.substr(0, 4 * kMiB + 1), 777);
  expect_written(text.substr(0, 8 * kMiB), 3 * kMiB);
  expect_written(text, text.size());
  expect_written(text, 5 * kMiB + 3);
}

TEST_P(HashedFile, LeavesNothingWhereItIsNotCommitted) {
  {
    AtomicFile file(path_, Digest::kSha256);
    file.write(std::string(30 << 20, 'x'));
  }
  for (const auto& entry : fs::directory_iterator(GetParam())) {
    EXPECT_NE(entry.path().string().rfind(path_.string(), 0), 0U)
        << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Folders,
    HashedFile,
    ::testing::Values("/var/tmp", "/dev/shm"),
    [](const auto& which) { return which.index == 0 ? "disk" : "memory"; });

}  // namespace
}  // namespace brigade
