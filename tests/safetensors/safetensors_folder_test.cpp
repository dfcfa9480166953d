#include "brigade/safetensors/folder.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "tests/support/message_of.h"
#include "tests/support/raw_file.h"
#include "tests/support/write_safetensors.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void write_shard(
    const std::filesystem::path& path,
    const std::vector<std::string>& names) {
  const std::string data = "x";
  std::vector<TensorToWrite> tensors;
  for (const std::string& name : names) {
    tensors.push_back(
        {name,
         SafetensorsDtype::kU8,
         {1},
         std::as_bytes(std::span(data.data(), 1))});
  }
  write_safetensors(path, tensors);
}

std::string folder_refusal(const std::filesystem::path& folder) {
  return message_of<DataError>([&] { SafetensorsFolder opened(folder); });
}

class SafetensorsFolderTest : public ::testing::Test {
 protected:
  void write_index(const std::string& text) {
    write_bytes(folder_ / kSafetensorsIndex, text);
  }
  const TemporaryFolder folder_;
};

TEST_F(SafetensorsFolderTest, FindsTensorsOverAllShards) {
  write_shard(folder_ / "one.safetensors", {"a", "b"});
  write_shard(folder_ / "two.safetensors", {"c"});
  write_index(R"({"metadata":{"total_size":3,"nested":[{"weight_map":1}]},)"
              R"("weight_map":{"a":"one.safetensors","b":"one.safetensors",)"
              R"("c":"two.safetensors"}})");
  const SafetensorsFolder opened(folder_.path());
  EXPECT_EQ(opened.files().size(), 2U);
  EXPECT_EQ(opened.tensors().size(), 3U);
  EXPECT_EQ(opened.find("c"), opened.files()[1].find("c"));
  EXPECT_EQ(opened.find("d"), nullptr);
}

TEST_F(SafetensorsFolderTest, ASingleFileGoesBeforeAnIndex) {
  write_shard(folder_ / kSafetensorsFile, {"a"});
  write_index("damaged");
  EXPECT_NE(SafetensorsFolder(folder_.path()).find("a"), nullptr);
}

TEST_F(SafetensorsFolderTest, AFolderWithNeitherSaysWhatItLooksFor) {
  EXPECT_THAT(
      folder_refusal(folder_.path()),
      AllOf(HasSubstr(kSafetensorsFile), HasSubstr(kSafetensorsIndex)));
}

TEST_F(SafetensorsFolderTest, AFileOutsideTheFolderIsRefusedByName) {
  for (const char* file :
       {"../x.safetensors",
        "/etc/passwd",
        "sub/../x.safetensors",
        "sub//x.safetensors",
        "sub/",
        "..",
        ".",
        "",
        R"(a\\b)",
        R"(a\u0000b)"}) {
    write_index(fmt::format(R"({{"weight_map":{{"w":"{}"}}}})", file));
    EXPECT_THAT(
        folder_refusal(folder_.path()),
        AllOf(HasSubstr("'w'"), HasSubstr("not a file in the same folder")))
        << file;
  }
}

// transformers reads the list of files from the index and then every tensor of
// each, in the order of their names.
TEST_F(SafetensorsFolderTest, OnlyTheListOfFilesOfAnIndexCounts) {
  std::filesystem::create_directory(folder_ / "sub");
  write_shard(folder_ / "one", {"a", "b"});
  write_shard(folder_ / "sub" / "two", {"b", "extra"});
  write_index(
      R"({"weight_map":{"a":"one","b":"one","c":"one","d":"sub/two"}})");
  const SafetensorsFolder opened(folder_.path());
  ASSERT_EQ(opened.files().size(), 2U);
  EXPECT_EQ(opened.find("a"), opened.files()[0].find("a"));
  EXPECT_EQ(opened.find("b"), opened.files()[1].find("b"));
  EXPECT_EQ(opened.find("extra"), opened.files()[1].find("extra"));
  EXPECT_EQ(opened.find("c"), nullptr);
  EXPECT_EQ(opened.find("d"), nullptr);
}

TEST_F(SafetensorsFolderTest, MalformedIndexesAreRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"{", ".json:1:2: not valid JSON: the text ends"},
      {"[]", "is an array, not an object"},
      {"{}", "holds no weight_map"},
      {R"({"weight_map":[]})", "an array as its weight_map"},
      {R"({"weight_map":{"a":1}})", "sends 'a' to a number"},
      {R"({"weight_map":{"a":{}}})", "sends 'a' to an object"},
      {R"({"weight_map":{"a":"x","a":"x"}})", "names 'a' twice"},
      {R"({"weight_map":{},"weight_map":{}})", "weight_map twice"},
      {R"({"weight_map":{}} x)", "not valid JSON"},
  };
  for (const auto& [index, message] : cases) {
    write_index(index);
    EXPECT_THAT(
        folder_refusal(folder_.path()),
        AllOf(HasSubstr(kSafetensorsIndex), HasSubstr(message)));
  }
}

TEST_F(SafetensorsFolderTest, AMissingShardIsNamed) {
  write_index(R"({"weight_map":{"a":"absent.safetensors"}})");
  EXPECT_THAT(folder_refusal(folder_.path()), HasSubstr("absent.safetensors"));
}

}  // namespace
}  // namespace brigade
