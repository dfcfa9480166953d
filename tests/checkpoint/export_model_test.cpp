#include "brigade/checkpoint/export_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "brigade/base/error.h"
#include "brigade/checkpoint/adapter_folder.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/save.h"
#include "brigade/files/file.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/safetensors/folder.h"
#include "brigade/safetensors/writer.h"
#include "tests/support/parsed_config.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_tensors.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A folder in float16, as other programs write it.
class ExportFolder : public ::testing::Test {
 protected:
  ExportFolder() {
    torch::manual_seed(3);
    fs::create_directory(source_);
    write_text_file(source_ / "config.json", config_.dump());
    write_text_file(source_ / kGenerationConfig, "{\"top_k\": 7}");
    write_text_file(source_ / "tokenizer.json", "{\"of\": \"theirs\"}");
    write_text_file(source_ / "chat_template.jinja", "{{ messages }}");
    rows_ = list_parameters(parsed_config(config_));
    for (const ParameterRow& row : rows_)
      weights_[row.name] = torch::randn(row.shape).to(torch::kFloat16);
  }

  // One of `base`, whose config's model.name is `name`.
  void save_adapter_run(const char* name, const char* base) const {
    CheckpointToSave run;
    run.manifest.model = config_;
    run.manifest.dtype = "float32";
    run.manifest.base_model = base;
    run.manifest.config = {
        {"model", {{"name", name}}},
        {"adapter", {{"rank", 1}, {"targets", {"q_proj"}}}}};
    for (const ParameterRow& row : adapter_rows(
             parsed_config(config_), {.rank = 1, .targets = {"q_proj"}}))
      run.weights.push_back(
          {.name = row.name, .tensor = torch::zeros(row.shape)});
    save_checkpoint(folder_ / "run", run, SaveRanks{});
  }

  // q, k and v stacked, and no "model." before a name.
  std::map<std::string, torch::Tensor> as_others_name_them() const {
    const std::string attention = "model.layers.0.self_attn.";
    std::map<std::string, torch::Tensor> stored = {
        {"layers.0.self_attn.qkv_proj.weight",
         torch::cat(
             {weights_.at(attention + "q_proj.weight"),
              weights_.at(attention + "k_proj.weight"),
              weights_.at(attention + "v_proj.weight")})}};
    for (const auto& [name, tensor] : weights_) {
      const std::string kind = name.substr(name.find_last_of('.') - 6, 6);
      if (kind != "q_proj" && kind != "k_proj" && kind != "v_proj")
        stored[name.substr(std::string("model.").size())] = tensor;
    }
    return stored;
  }

  void expect_weights(SafetensorsDtype dtype, torch::Dtype torch_type) const {
    const SafetensorsFolder out(out_);
    EXPECT_EQ(out.tensors().size(), rows_.size());
    for (const ParameterRow& row : rows_) {
      const SafetensorsTensor* const found = out.find(row.name);
      ASSERT_NE(found, nullptr) << row.name;
      EXPECT_EQ(found->dtype, dtype) << row.name;
      const torch::Tensor expected = weights_.at(row.name).to(torch_type);
      ASSERT_EQ(found->data.size(), expected.nbytes()) << row.name;
      EXPECT_EQ(
          std::memcmp(
              found->data.data(), expected.data_ptr(), expected.nbytes()),
          0)
          << row.name;
    }
  }

  const TemporaryFolder folder_;
  const fs::path source_ = folder_ / "source";
  const fs::path out_ = folder_ / "out";
  const json config_ = {
      {"model_type", "llama"},
      {"vocab_size", 20},
      {"hidden_size", 8},
      {"intermediate_size", 12},
      {"num_hidden_layers", 1},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 1},
      {"tie_word_embeddings", true},
      {"torch_dtype", "float16"},
      {"pad_token_id", 5}};
  std::vector<ParameterRow> rows_;
  std::map<std::string, torch::Tensor> weights_;
};

TEST_F(ExportFolder, WritesTheModelUnderOneSetOfNamesWithItsFiles) {
  write_tensors(source_ / kSafetensorsFile, as_others_name_them());
  const ExportedModel model = export_folder(source_, out_);
  EXPECT_EQ(model.dtype, "float32");
  EXPECT_FALSE(model.step);
  EXPECT_TRUE(model.has_tokenizer);
  expect_weights(SafetensorsDtype::kF32, torch::kFloat32);
  const json config = json::parse(read_text_file(out_ / "config.json"));
  EXPECT_EQ(config["torch_dtype"], "float32");
  EXPECT_EQ(config["pad_token_id"], 5);
  for (const char* name :
       {kGenerationConfig, "tokenizer.json", "chat_template.jinja"})
    EXPECT_EQ(read_text_file(out_ / name), read_text_file(source_ / name));
  // A second export changes nothing.
  export_folder(out_, folder_ / "again");
  EXPECT_EQ(
      read_text_file(folder_ / "again" / kSafetensorsFile),
      read_text_file(out_ / kSafetensorsFile));
  EXPECT_EQ(
      json::parse(read_text_file(folder_ / "again" / "config.json")), config);
}

TEST_F(ExportFolder, RoundsToTheDtypeThatIsAskedFor) {
  write_tensors(source_ / kSafetensorsFile, weights_);
  ExportOptions options;
  options.dtype = "bfloat16";
  EXPECT_EQ(export_folder(source_, out_, options).dtype, "bfloat16");
  expect_weights(SafetensorsDtype::kBF16, torch::kBFloat16);
  EXPECT_EQ(
      json::parse(read_text_file(out_ / "config.json"))["torch_dtype"],
      "bfloat16");
}

TEST_F(ExportFolder, FilesInAFolderBelowTheIndexAreRead) {
  fs::create_directory(source_ / "parts");
  write_tensors(source_ / "parts" / "a.safetensors", weights_);
  json map = json::object();
  for (const ParameterRow& row : rows_)
    map[row.name] = "parts/a.safetensors";
  write_text_file(
      source_ / kSafetensorsIndex, json({{"weight_map", map}}).dump());
  EXPECT_TRUE(is_model_folder(source_));
  export_folder(source_, out_);
  expect_weights(SafetensorsDtype::kF32, torch::kFloat32);
}

TEST_F(ExportFolder, AMissingTensorIsNamedAndNothingIsWritten) {
  auto stored = weights_;
  stored.erase("model.norm.weight");
  write_tensors(source_ / kSafetensorsFile, stored);
  EXPECT_THAT(
      [&] { export_folder(source_, out_); },
      ThrowsMessage<DataError>(HasSubstr("missing: model.norm.weight")));
  EXPECT_FALSE(fs::exists(out_));
}

// A run on texts that end otherwise than its base model's, as transformers'
// Trainer has it.
TEST_F(ExportFolder, ARunsModelEndsTextsAsItsTokenizerDoes) {
  const auto check = [&](const json& eos,
                         const json& generation,
                         const json& expected,
                         const json& expected_generation) {
    fs::remove_all(out_);
    json config = config_;
    config["eos_token_id"] = eos;
    config["bos_token_id"] = 1;
    CheckpointToSave run;
    run.manifest.model = run.manifest.model_source = config;
    run.manifest.dtype = "float32";
    for (const ParameterRow& row : rows_)
      run.weights.push_back(
          {.name = row.name, .tensor = torch::zeros(row.shape)});
    if (!generation.is_null()) {
      write_text_file(folder_ / "generation", generation.dump());
      run.attachments[folder_ / "generation"] = kGenerationConfig;
    }
    save_checkpoint(folder_ / "run", run, SaveRanks{});
    export_checkpoint(
        folder_ / "run", out_, {.bos_token_id = 1, .eos_token_id = 7});
    EXPECT_EQ(
        json::parse(read_text_file(out_ / "config.json"))["eos_token_id"],
        expected);
    EXPECT_EQ(
        json::parse(read_text_file(out_ / kGenerationConfig)),
        expected_generation);
    fs::remove_all(folder_ / "run");
  };
  check(
      2,
      {{"eos_token_id", 2}, {"top_k", 3}},
      7,
      {{"bos_token_id", 1}, {"eos_token_id", {7, 2}}, {"top_k", 3}});
  check(
      {2, 5},
      {{"eos_token_id", {5, 2}}, {"bos_token_id", 1}},
      {7, 2, 5},
      {{"eos_token_id", {7, 5, 2}}, {"bos_token_id", 1}});
  check(
      nullptr,
      nullptr,
      7,
      {{"_from_model_config", true},
       {"bos_token_id", 1},
       {"eos_token_id", 7},
       {"pad_token_id", 5}});
  check(
      {2, 7},
      {{"eos_token_id", {2, 7}}, {"bos_token_id", 1}},
      {2, 7},
      {{"eos_token_id", {2, 7}}, {"bos_token_id", 1}});
  EXPECT_THAT(
      [&] { check(2, json::array({1}), nullptr, nullptr); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr(kGenerationConfig), HasSubstr("expected an object"))));
  // It is not read where no ids are set.
  export_checkpoint(folder_ / "run", out_);
  EXPECT_EQ(read_text_file(out_ / kGenerationConfig), "[1]");
  // A folder's stay as they are.
  write_text_file(source_ / kGenerationConfig, "[1]");
  write_tensors(source_ / kSafetensorsFile, weights_);
  json config = config_;
  config["eos_token_id"] = 2;
  write_text_file(source_ / "config.json", config.dump());
  export_folder(source_, folder_ / "same", {.eos_token_id = 7});
  EXPECT_EQ(
      json::parse(
          read_text_file(folder_ / "same" / "config.json"))["eos_token_id"],
      2);
  EXPECT_EQ(read_text_file(folder_ / "same" / kGenerationConfig), "[1]");
}

// The snapshot's folder is of this machine alone.
TEST_F(ExportFolder, AnAdapterOfADownloadedModelNamesIt) {
  const std::string snapshot = "/models--x/snapshots/1";
  for (const auto& [name, base, expected] :
       {std::tuple{"org/base", "/models--org--base/snapshots/1", "org/base"},
        std::tuple{"base", "/models--base/snapshots/1", "base"},
        std::tuple{"a/base", "/a/base", "/a/base"},
        std::tuple{"x/snapshots/1", snapshot.c_str(), snapshot.c_str()}}) {
    save_adapter_run(name, base);
    export_checkpoint(folder_ / "run", out_);
    const json written =
        json::parse(read_text_file(out_ / "adapter_config.json"));
    EXPECT_EQ(written["base_model_name_or_path"], expected);
    fs::remove_all(out_);
  }
}

TEST_F(ExportFolder, WhatAnAdapterHasNotIsRefused) {
  save_adapter_run("base", "/base");
  for (const auto& [name, options] :
       {std::pair{"--dtype", ExportOptions{.dtype = "bfloat16"}},
        std::pair{"--shard-gb", ExportOptions{.max_shard_bytes = 9}},
        std::pair{"--upcycle", ExportOptions{.upcycle = UpcycleOptions{}}}}) {
    const ExportOptions with = options;
    EXPECT_THAT(
        [&] { export_checkpoint(folder_ / "run", out_, with); },
        ThrowsMessage<ConfigError>(
            AllOf(HasSubstr(name), HasSubstr("is an adapter's run"))));
    EXPECT_FALSE(fs::exists(out_));
  }
}

}  // namespace
}  // namespace brigade
