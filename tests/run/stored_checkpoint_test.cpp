#include "brigade/run/stored_checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/files/digest.h"
#include "tests/support/message_of.h"
#include "tests/support/raw_file.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr const char* kFile = "model.safetensors";

class StoredCheckpointTest : public ::testing::Test {
 protected:
  // A tensor of two numbers, as step `step` of `run` holds it.
  static std::string file_of(const std::string& run, const std::string& step) {
    return raw_safetensors(
        R"({"__metadata__":{"brigade.run":")" + run + R"(","brigade.step":")" +
            step +
            R"("},"w":{"dtype":"F32","shape":[2],)"
            R"("data_offsets":[0,8]}})",
        std::string(8, '\1'));
  }
  fs::path save(int64_t step = 7) {
    const std::string name = std::to_string(step);
    const fs::path directory = folder_ / name;
    fs::create_directory(directory);
    write_bytes(directory / kFile, file_of("a", name));
    CheckpointManifest manifest;
    manifest.step = step;
    manifest.samples = 0;
    manifest.run = "a";
    manifest.data = manifest.model = manifest.config = nlohmann::json::object();
    manifest.dtype = "float32";
    manifest.files = {kFile};
    manifest.contents[kFile] = {
        .size_bytes = fs::file_size(directory / kFile),
        .sha256 = sha256_of_file(directory / kFile)};
    write_bytes(directory / kManifestFile, manifest_to_text(manifest));
    return directory;
  }
  std::string complaint() const {
    return message_of<DataError>(
        [&] { const StoredCheckpoint checkpoint(folder_.path()); });
  }

  TemporaryFolder folder_;
};

TEST_F(StoredCheckpointTest, TheNewestOfAFolderIsFoundWithItsTensors) {
  save(9);
  const fs::path directory = save(10);
  fs::create_directory(folder_ / "12");  // without a manifest
  const StoredCheckpoint checkpoint(folder_.path());
  EXPECT_EQ(checkpoint.directory(), directory);
  EXPECT_EQ(checkpoint.manifest().step, 10);
  ASSERT_EQ(checkpoint.tensors().size(), 1U);
  EXPECT_EQ(checkpoint.tensors()[0].name, "w");
  EXPECT_EQ(checkpoint.tensors()[0].size_bytes, 8U);
  EXPECT_TRUE(checkpoint.tensors()[0].is_whole);
}

// All have the manifest's size: this is what a run checks before it has ranks.
TEST_F(StoredCheckpointTest, FilesOfAnotherRunOrStepAndBrokenOnesAreRefused) {
  const fs::path directory = save();
  write_bytes(directory / kFile, file_of("b", "7"));
  EXPECT_THAT(complaint(), HasSubstr("belongs to step '7' of run 'b'"));
  write_bytes(directory / kFile, file_of("a", "8"));
  EXPECT_THAT(complaint(), HasSubstr("belongs to step '8' of run 'a'"));
  std::string broken = file_of("a", "7");
  broken[8] = '[';
  write_bytes(directory / kFile, broken);
  EXPECT_THAT(complaint(), HasSubstr(kFile));
  write_bytes(directory / kFile, file_of("a", "7"));
  EXPECT_EQ(complaint(), "");
  fs::remove(directory / kFile);
  EXPECT_THAT(complaint(), HasSubstr("is missing"));
}

}  // namespace
}  // namespace brigade
