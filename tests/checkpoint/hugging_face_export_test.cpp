#include "brigade/checkpoint/hugging_face_export.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "brigade/base/error.h"
#include "brigade/checkpoint/checkpoint.h"
#include "brigade/checkpoint/save.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/files/file.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/safetensors/writer.h"
#include "tests/support/parsed_config.h"
#include "tests/support/temporary_folder.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using ::testing::UnorderedElementsAre;

DecoderConfig small_config() {
  return parsed_config(
      {{"model_type", "qwen2"},
       {"vocab_size", 20},
       {"hidden_size", 8},
       {"intermediate_size", 12},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 2},
       {"num_key_value_heads", 2},
       {"bos_token_id", 1},
       {"eos_token_id", {2, 3}}});
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

class ExportTest : public ::testing::Test {
 protected:
  ExportTest() {
    torch::manual_seed(5);
    for (const ParameterRow& param : list_parameters(config_)) {
      weights_[param.name] = torch::randn(param.shape).to(torch::kBFloat16);
      request_.tensors.push_back({param.name, param.shape});
    }
    request_.out = folder_ / "out";
    request_.config = to_hugging_face_json(config_, "bfloat16");
    request_.dtype = SafetensorsDtype::kBF16;
    request_.read = [this](const std::string& name) {
      return weights_.at(name);
    };
  }

  // Every weight in the exported folder has the given bytes.
  void expect_same_weights(const fs::path& out) {
    const SafetensorsFolder folder(out);
    ASSERT_EQ(folder.tensors().size(), weights_.size());
    for (const auto& [name, weight] : weights_) {
      const SafetensorsTensor* stored = folder.find(name);
      ASSERT_NE(stored, nullptr) << name;
      EXPECT_EQ(stored->dtype, SafetensorsDtype::kBF16);
      ASSERT_EQ(stored->data.size(), weight.nbytes());
      EXPECT_EQ(
          std::memcmp(stored->data.data(), weight.data_ptr(), weight.nbytes()),
          0)
          << name;
    }
  }

  const TemporaryFolder folder_;
  const DecoderConfig config_ = small_config();
  std::map<std::string, torch::Tensor> weights_;
  HuggingFaceExport request_;
};

TEST_F(ExportTest, WritesTheFilesThatTransformersLoads) {
  write_text_file(folder_ / "shakespeare.model", "sentencepiece");
  request_.files = find_tokenizer_files(folder_ / "shakespeare.model");
  export_hugging_face(request_);
  EXPECT_THAT(
      names_in(request_.out),
      UnorderedElementsAre(
          "config.json",
          "generation_config.json",
          "model.safetensors",
          "tokenizer.model"));
  EXPECT_EQ(
      parsed_config(json::parse(read_text_file(request_.out / "config.json"))),
      config_);
  EXPECT_EQ(
      json::parse(read_text_file(request_.out / "generation_config.json")),
      json(
          {{"_from_model_config", true},
           {"bos_token_id", 1},
           {"eos_token_id", {2, 3}}}));
  EXPECT_EQ(
      SafetensorsFile(request_.out / "model.safetensors")
          .metadata()
          .at("format"),
      "pt");
  expect_same_weights(request_.out);
}

TEST_F(ExportTest, LargeModelsAreSplitWithAnIndex) {
  request_.max_shard_bytes = 1000;
  export_hugging_face(request_);
  const json index = json::parse(
      read_text_file(request_.out / "model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 2 * parameter_count(config_));
  std::set<std::string> files;
  for (const auto& file : index["weight_map"])
    files.insert(file.get<std::string>());
  ASSERT_GT(files.size(), 1U);
  EXPECT_EQ(
      *files.begin(),
      fmt::format("model-00001-of-{:05}.safetensors", files.size()));
  for (const std::string& file : files) {
    uint64_t bytes = 0;
    const SafetensorsFile shard(request_.out / file);
    for (const SafetensorsTensor& tensor : shard.tensors())
      bytes += tensor.data.size();
    EXPECT_LE(bytes, request_.max_shard_bytes);
  }
  expect_same_weights(request_.out);
}

TEST_F(ExportTest, KeepsEveryByteThroughACheckpointWithoutAStep) {
  CheckpointToSave saved;
  saved.manifest.model = request_.config;
  saved.manifest.dtype = "bfloat16";
  for (const auto& [name, weight] : weights_) {
    const torch::Tensor loaded = torch::empty_like(weight);
    loaded.copy_(weight);
    saved.weights.push_back({.name = name, .tensor = loaded});
  }
  save_checkpoint(folder_ / "checkpoint", saved, SaveRanks{});
  const Checkpoint checkpoint(folder_ / "checkpoint");
  request_.read = [&](const std::string& name) {
    return checkpoint.read_whole(name);
  };
  export_hugging_face(request_);
  expect_same_weights(request_.out);
}

TEST_F(ExportTest, AFolderThatHoldsSomethingIsLeftAlone) {
  fs::create_directory(request_.out);
  write_text_file(request_.out / "precious", "x");
  EXPECT_THAT(
      [&] { export_hugging_face(request_); },
      ThrowsMessage<ConfigError>(HasSubstr(request_.out.string())));
  EXPECT_THAT(names_in(request_.out), UnorderedElementsAre("precious"));
}

TEST_F(ExportTest, AnEmptyFolderAndASlashAtTheEndAreFine) {
  fs::create_directory(request_.out);
  const fs::path out = request_.out;
  request_.out += "/";
  export_hugging_face(request_);
  expect_same_weights(out);
}

TEST_F(ExportTest, ATensorOfAnotherShapeOrDtypeIsNamedAndNothingIsLeft) {
  for (const torch::Tensor& wrong :
       {torch::zeros({9}, torch::kBFloat16), torch::zeros({8})}) {
    weights_["model.norm.weight"] = wrong;
    EXPECT_THAT(
        [&] { export_hugging_face(request_); },
        ThrowsMessage<DataError>(
            AllOf(HasSubstr("'model.norm.weight'"), HasSubstr("BF16 [8]"))));
    EXPECT_TRUE(fs::is_empty(folder_.path()));
  }
}

TEST_F(ExportTest, TokenizersAreFoundByFolderOrKind) {
  write_text_file(folder_ / "llama2.json", "{}");
  auto files = find_tokenizer_files(folder_ / "llama2.json");
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].name, "tokenizer.json");
  write_text_file(folder_ / "tokenizer_config.json", "{}");
  files = find_tokenizer_files(folder_.path());
  ASSERT_EQ(files.size(), 1U);
  EXPECT_EQ(files[0].name, "tokenizer_config.json");
  EXPECT_THROW(find_tokenizer_files(folder_ / "absent"), DataError);
  const std::string more = "additional_chat_templates/tools.jinja";
  fs::create_directory((folder_ / more).parent_path());
  write_text_file(folder_ / more, "T");
  request_.files = find_tokenizer_files(folder_.path());
  request_.out = folder_ / "out";
  export_hugging_face(request_);
  EXPECT_EQ(read_text_file(request_.out / more), "T");
}

}  // namespace
}  // namespace brigade
