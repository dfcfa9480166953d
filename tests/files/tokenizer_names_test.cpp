#include "brigade/files/tokenizer_names.h"

#include <gtest/gtest.h>

#include "brigade/files/file.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;

TEST(TokenizerNames, TheFirstThatAFolderHoldsIsFound) {
  const TemporaryFolder folder;
  EXPECT_EQ(find_tokenizer_file(folder.path()), fs::path());
  write_text_file(folder / "tokenizer.model", "");
  EXPECT_EQ(find_tokenizer_file(folder.path()), folder / "tokenizer.model");
  write_text_file(folder / "tokenizer.json", "");
  EXPECT_EQ(find_tokenizer_file(folder.path()), folder / "tokenizer.json");
}

// An empty path is not the working directory.
TEST(TokenizerNames, WithoutAFolderNoneIsFound) {
  const TemporaryFolder folder;
  write_text_file(folder / "tokenizer.json", "");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const fs::path found = find_tokenizer_file({});
  fs::current_path(before);
  EXPECT_EQ(found, fs::path());
}

}  // namespace
}  // namespace brigade
