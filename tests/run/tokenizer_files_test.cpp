#include "brigade/run/tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/data/training_data.h"
#include "brigade/files/file.h"
#include "brigade/run/resume_check.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;

// A folder with a tokenizer and, in a sub-folder, a chat template.
std::filesystem::path add_tokenizer(
    const TemporaryFolder& folder,
    const std::string& name) {
  const auto more = folder / name / "additional_chat_templates";
  std::filesystem::create_directories(more);
  write_text_file(folder / name / "tokenizer.json", "{}");
  write_text_file(more / "tools.jinja", "T");
  return folder / name;
}

std::vector<std::string> names_of(const std::vector<FileToCopy>& files) {
  std::vector<std::string> names;
  for (const FileToCopy& file : files)
    names.push_back(file.name);
  return names;
}

TEST(TokenizerFiles, ATemplateOfItsOwnIsInPlaceOfAllOfTheModel) {
  const TemporaryFolder folder;
  const auto model = add_tokenizer(folder, "model");
  const auto own = folder / "own";
  std::filesystem::create_directory(own);
  write_text_file(own / "tokenizer.json", "{}");
  const std::string more = "additional_chat_templates/tools.jinja";
  EXPECT_THAT(
      names_of(find_tokenizer_files(own, model)),
      ElementsAre("tokenizer.json", more));
  write_text_file(own / "chat_template.jinja", "own");
  EXPECT_THAT(
      names_of(find_tokenizer_files(own, model)),
      ElementsAre("tokenizer.json", "chat_template.jinja"));
  // Those of one folder belong together.
  write_text_file(model / "chat_template.jinja", "D");
  EXPECT_THAT(
      names_of(find_tokenizer_files(model)),
      ElementsAre("tokenizer.json", "chat_template.jinja", more));
}

// Checkpoints of before they were copied have none of them in the digest.
TEST(TokenizerFiles, MoreTemplatesAreNotInTheDigestOfARun) {
  const TemporaryFolder folder;
  TrainConfig config;
  config.dataset.tokenizer = add_tokenizer(folder, "tokenizer").string();
  const auto digest = [&] {
    return describe_data(config, TrainingData()).at("tokenizer_sha256");
  };
  for (const char* description : {"tokenizer.json", "tokenizer_config.json"}) {
    write_text_file(folder / "tokenizer" / description, "{}");
    const auto with_template = digest();
    std::filesystem::rename(
        folder / "tokenizer/additional_chat_templates", folder / "away");
    EXPECT_EQ(digest(), with_template);
    std::filesystem::rename(
        folder / "away", folder / "tokenizer/additional_chat_templates");
  }
}

}  // namespace
}  // namespace brigade
