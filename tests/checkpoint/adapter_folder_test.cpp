#include "brigade/checkpoint/adapter_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/param/param.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_safetensors.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

DecoderConfig small_model() {
  DecoderConfig config;
  config.vocab_size = 13;
  config.hidden_size = 8;
  config.intermediate_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 2;
  return config;
}

class AdapterFolderTest : public ::testing::Test {
 protected:
  AdapterFolderTest() {
    for (const ParameterRow& row : adapter_rows(small_model(), options_))
      tensors_[row.name] = torch::randn(row.shape);
  }

  // As export_adapter() writes it.
  fs::path write(const std::string& name = "adapter") {
    const fs::path out = folder_ / name;
    export_adapter(
        {.out = out,
         .model = small_model(),
         .options = options_,
         .base_model = "some/base",
         .read = [this](const std::string& of) { return tensors_.at(of); }});
    return out;
  }
  // The message of an adapter whose config has `value` at `key`.
  std::string refusal(const std::string& key, const json& value) {
    const fs::path folder = write("refused");
    json config = json::parse(read_text_file(folder / "adapter_config.json"));
    config[key] = value;
    write_text_file(folder / "adapter_config.json", config.dump(2));
    std::string message;
    try {
      const AdapterFolder adapter(folder);
    } catch (const DataError& error) {
      message = error.what();
    }
    fs::remove_all(folder);
    return message;
  }

  const TemporaryFolder folder_;
  const AdapterOptions options_{
      .rank = 3,
      .alpha = 12,
      .dropout = 0.1,
      .use_dora = true,
      .targets = {"q_proj", "down_proj"}};
  std::map<std::string, torch::Tensor> tensors_;
};

TEST_F(AdapterFolderTest, HasPeftsNamesAndConfig) {
  const fs::path out = write();
  const SafetensorsFile file(out / "adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 12U);
  EXPECT_NE(
      file.find("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"),
      nullptr);
  EXPECT_EQ(
      file.at("base_model.model.model.layers.0.self_attn.q_proj"
              ".lora_magnitude_vector")
          .shape,
      std::vector<uint64_t>{8});
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const json config = json::parse(read_text_file(out / "adapter_config.json"));
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["task_type"], "CAUSAL_LM");
  EXPECT_EQ(config["r"], 3);
  EXPECT_EQ(config["lora_alpha"], 12);
  EXPECT_EQ(config["lora_dropout"], 0.1);
  EXPECT_EQ(config["use_dora"], true);
  EXPECT_EQ(config["base_model_name_or_path"], "some/base");
  EXPECT_EQ(config["target_modules"], json({"down_proj", "q_proj"}));
}

TEST_F(AdapterFolderTest, IsReadAsItWasWritten) {
  const AdapterFolder read(write());
  EXPECT_EQ(read.options().rank, 3);
  EXPECT_EQ(read.options().scale(), 4);
  EXPECT_EQ(read.options().dropout, 0.1);
  EXPECT_TRUE(read.options().use_dora);
  EXPECT_EQ(read.base_model(), "some/base");
  EXPECT_THAT(
      read.options().targets,
      ElementsAre(
          "model.layers.0.mlp.down_proj",
          "model.layers.0.self_attn.q_proj",
          "model.layers.1.mlp.down_proj",
          "model.layers.1.self_attn.q_proj"));
  EXPECT_NO_THROW(read.check_fits(small_model()));
  for (const auto& [name, tensor] : tensors_)
    EXPECT_TRUE(torch::equal(read.read_whole(name), tensor)) << name;
}

TEST_F(AdapterFolderTest, GivesEachRankItsPart) {
  const AdapterFolder read(write());
  for (const ParameterRow& row : adapter_rows(small_model(), options_)) {
    const ParamShard cut =
        shard_parameter(row, {.tp = 2}, {.tp = 1}, TokenLayout::kReplicated);
    const Param param = make_param(
        row, whole_model(small_model()), cut, torch::empty(cut.shape));
    read.read(param);
    EXPECT_TRUE(torch::equal(
        param.tensor, take_slice(tensors_.at(row.name), cut.slice)))
        << row.name;
  }
}

TEST_F(AdapterFolderTest, AnAdapterOfAnotherModelIsRefusedWithNamesAndShapes) {
  const AdapterFolder read(write());
  DecoderConfig other = small_model();
  other.num_hidden_layers = 1;
  other.hidden_size = 16;
  try {
    read.check_fits(other);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("trained beside 'some/base'"),
            HasSubstr("model.layers.1.mlp.down_proj: the model has no such"),
            HasSubstr("q_proj.lora_A.weight is [3, 8], expected [3, 16]")));
  }
}

TEST_F(AdapterFolderTest, MagnitudesWithoutUseDoraAreNamed) {
  const fs::path folder = write();
  json config = json::parse(read_text_file(folder / "adapter_config.json"));
  config["use_dora"] = false;
  write_text_file(folder / "adapter_config.json", config.dump(2));
  try {
    AdapterFolder(folder).check_fits(small_model());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("q_proj.lora_magnitude_vector is there, but use_dora is "
                  "false in adapter_config.json"));
  }
}

TEST_F(AdapterFolderTest, WhatIsNoPlainAdapterIsRefusedByName) {
  EXPECT_THAT(refusal("bias", "all"), HasSubstr("bias"));
  EXPECT_THAT(
      refusal("rank_pattern", {{"q_proj", 2}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(
      refusal("modules_to_save", {"lm_head"}), HasSubstr("modules_to_save"));
  EXPECT_THAT(refusal("peft_type", "IA3"), HasSubstr("is no LORA"));
  EXPECT_EQ(refusal("modules_to_save", nullptr), "");
}

TEST_F(AdapterFolderTest, ATensorThatIsNoAdaptersIsNamed) {
  const fs::path folder = write();
  const torch::Tensor tensor = torch::zeros({2});
  write_safetensors(
      folder / "adapter_model.safetensors",
      {{"base_model.model.lm_head.weight",
        SafetensorsDtype::kF32,
        {2},
        {static_cast<const std::byte*>(tensor.data_ptr()), 8}}});
  try {
    const AdapterFolder read(folder);
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("lm_head.weight' is not the lora_A"));
  }
}

TEST_F(AdapterFolderTest, AFolderWithoutItsFilesIsNone) {
  try {
    const AdapterFolder read(folder_ / "nothing");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is no adapter"));
  }
}

TEST_F(AdapterFolderTest, MergesInFloat32) {
  const torch::Tensor weight = torch::randn({8, 8});
  const std::string module = "model.layers.0.self_attn.q_proj";
  const torch::Tensor merged =
      merged_weight(weight, module, options_, [this](const std::string& name) {
        return tensors_.at(name);
      });
  const auto wide = [&](const char* kind) {
    return tensors_.at(module + kind).to(torch::kDouble);
  };
  torch::Tensor expected =
      weight.to(torch::kDouble) +
      4 * torch::matmul(wide(".lora_B.weight"), wide(".lora_A.weight"));
  expected = expected *
             (wide(".lora_magnitude_vector") / expected.square().sum(1).sqrt())
                 .unsqueeze(1);
  EXPECT_TRUE(torch::allclose(merged.to(torch::kDouble), expected, 1e-5, 1e-6));
}

}  // namespace
}  // namespace brigade
