#include "brigade/checkpoint/adapter_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/files/file.h"
#include "brigade/param/param.h"
#include "tests/support/message_of.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_tensors.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

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

  // Writes the adapter with export_adapter().
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
    const std::string message = message_of<DataError>(
        [&] { const AdapterFolder adapter(folder, small_model()); });
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
  const AdapterFolder read(write(), small_model());
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
  for (const auto& [name, tensor] : tensors_)
    EXPECT_TRUE(torch::equal(read.read_whole(name), tensor)) << name;
}

TEST_F(AdapterFolderTest, GivesEachRankItsPart) {
  const AdapterFolder read(write(), small_model());
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
  const fs::path folder = write();
  DecoderConfig other = small_model();
  other.num_hidden_layers = 1;
  other.hidden_size = 16;
  EXPECT_THAT(
      [&] { const AdapterFolder read(folder, other); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr("trained beside 'some/base'"),
          HasSubstr("model.layers.1.mlp.down_proj: the model's layers have no"),
          HasSubstr("q_proj.lora_A.weight is [3, 8], expected [3, 16]"))));
}

TEST_F(AdapterFolderTest, MagnitudesWithoutUseDoraAreNamed) {
  EXPECT_THAT(
      refusal("use_dora", false),
      HasSubstr("q_proj.lora_magnitude_vector is there, but use_dora is "
                "false in adapter_config.json"));
}

TEST_F(AdapterFolderTest, RefusesUnsupportedAdaptersByName) {
  EXPECT_THAT(refusal("bias", "all"), HasSubstr("bias"));
  EXPECT_THAT(
      refusal("rank_pattern", {{"q_proj", 2}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(
      refusal("alpha_pattern", {{R"(.*\.down_proj)", 24}}),
      HasSubstr("mlp.down_proj' an alpha of its own"));
  EXPECT_EQ(refusal("alpha_pattern", {{R"(.*\.down_proj)", 12}}), "");
  EXPECT_THAT(
      refusal(
          "alpha_pattern", {{R"(layers\.0\.mlp\.experts\.gate_up_proj)", 24}}),
      HasSubstr("alpha_pattern"));
  EXPECT_THAT(
      refusal("modules_to_save", {"lm_head"}), HasSubstr("modules_to_save"));
  EXPECT_THAT(refusal("peft_type", "IA3"), HasSubstr("is no LORA"));
  EXPECT_EQ(refusal("modules_to_save", nullptr), "");
  for (const char* init : {"pissa", "pissa_niter_4", "corda", "olora", "loftq"})
    EXPECT_THAT(
        refusal("init_lora_weights", init),
        HasSubstr("changes the base model's weights"));
  for (const nlohmann::json& init :
       {nlohmann::json("gaussian"),
        nlohmann::json("eva"),
        nlohmann::json(true)})
    EXPECT_EQ(refusal("init_lora_weights", init), "");
  EXPECT_THAT(
      refusal("alora_invocation_tokens", {1, 2}),
      HasSubstr("alora_invocation_tokens"));
}

TEST_F(AdapterFolderTest, ATensorThatIsNoAdaptersIsNamed) {
  const fs::path folder = write();
  write_tensors(
      folder / "adapter_model.safetensors",
      {{"base_model.model.lm_head.weight", torch::zeros({2})}});
  EXPECT_THAT(
      [&] { const AdapterFolder read(folder, small_model()); },
      ThrowsMessage<DataError>(HasSubstr("lm_head.weight' is not the lora_A")));
}

TEST_F(AdapterFolderTest, PartsThatItsTargetsNeedAreMissed) {
  const std::string file = "adapter_model.safetensors";
  std::map<std::string, torch::Tensor> first;
  for (const auto& [name, tensor] : tensors_) {
    if (name.starts_with("model.layers.0.self_attn.q_proj"))
      first["base_model.model." + name] = tensor;
  }
  const fs::path folder = write();
  write_tensors(folder / file, first);
  EXPECT_THAT(
      [&] { const AdapterFolder read(folder, small_model()); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr("layers.0.mlp.down_proj.lora_A.weight is missing"),
          HasSubstr("layers.1.self_attn.q_proj.lora_B.weight is missing"))));
  // Not where more than a list of names decides.
  const std::string config = read_text_file(folder / "adapter_config.json");
  for (const auto& [key, value] :
       {std::pair<const char*, json>{"target_modules", ".*0.*q_proj"},
        {"layers_to_transform", 0},
        {"exclude_modules", {"down_proj"}}}) {
    json other = json::parse(config);
    other[key] = value;
    write_text_file(folder / "adapter_config.json", other.dump());
    EXPECT_EQ(
        AdapterFolder(folder, small_model()).options().targets.size(), 1U);
    write_tensors(folder / file, {});
    EXPECT_THAT(
        [&] { const AdapterFolder read(folder, small_model()); },
        ThrowsMessage<DataError>(HasSubstr("has no tensors")));
    write_tensors(folder / file, first);
  }
}

TEST_F(AdapterFolderTest, AValueThatIsNotFiniteIsRefusedWithItsTensor) {
  const std::string name = "model.layers.1.mlp.down_proj.lora_A.weight";
  tensors_[name][1][2] = std::numeric_limits<float>::quiet_NaN();
  const fs::path folder = write();
  const AdapterFolder read(folder, small_model());
  EXPECT_THAT(
      [&] { read.read_whole(name); },
      ThrowsMessage<DataError>(AllOf(
          HasSubstr(name + "' in '" + folder.string()),
          HasSubstr("1 values that are not finite"))));
}

TEST_F(AdapterFolderTest, AFolderWithoutItsFilesIsNone) {
  EXPECT_THAT(
      [&] { const AdapterFolder read(folder_ / "nothing", small_model()); },
      ThrowsMessage<DataError>(HasSubstr("is no adapter")));
}

using NamedTensor = std::pair<std::string, torch::Tensor>;

void write_adapter(
    const fs::path& folder,
    const json& config,
    const std::vector<NamedTensor>& tensors) {
  fs::create_directories(folder);
  write_text_file(folder / "adapter_config.json", config.dump(2));
  std::map<std::string, torch::Tensor> stored;
  for (const auto& [name, tensor] : tensors)
    stored["base_model.model.model.layers.0." + name] = tensor;
  write_tensors(folder / "adapter_model.safetensors", stored);
}

DecoderConfig one_layer_of_mixtral() {
  DecoderConfig config = small_model();
  config.architecture = Architecture::kMixtral;
  config.num_hidden_layers = 1;
  config.experts =
      ExpertsConfig{.num_experts = 3, .num_experts_per_tok = 2, .width = 6};
  return config;
}

// PEFT stores the adapters of parameters so that delta =
// einsum("ore,eri->eoi").
TEST_F(AdapterFolderTest, ExpertsOfALayerTogetherAreReadOneByOne) {
  const torch::Tensor gate_up_a = torch::randn({3 * 4, 8});
  const torch::Tensor gate_up_b = torch::randn({12, 4 * 3});
  const torch::Tensor down_a = torch::randn({3 * 2, 6});
  const torch::Tensor down_b = torch::randn({8, 2 * 3});
  const torch::Tensor router_a = torch::randn({2, 8});
  const torch::Tensor router_b = torch::randn({3, 2});
  const fs::path folder = folder_ / "together";
  const json config = {
      {"peft_type", "LORA"},
      {"r", 2},
      {"lora_alpha", 6},
      {"rank_pattern", {{R"(.*\.gate_up_proj)", 4}}},
      {"alpha_pattern", {{R"(.*\.gate_up_proj)", 20}}},
      {"target_parameters", {"down_proj", "gate.weight", "gate_up_proj"}}};
  const std::string inner = "mlp.experts.base_layer.";
  const std::vector<NamedTensor> tensors = {
      {inner + "lora_A.weight", gate_up_a},
      {inner + "lora_B.weight", gate_up_b},
      {"mlp.experts.lora_A.weight", down_a},
      {"mlp.experts.lora_B.weight", down_b},
      {"mlp.gate.lora_A.weight", router_a},
      {"mlp.gate.lora_B.weight", router_b}};
  write_adapter(folder, config, tensors);
  const AdapterFolder read(folder, one_layer_of_mixtral());
  EXPECT_EQ(read.options().rank, 4);
  const auto delta = [&](const std::string& linear) {
    const std::string module = "model.layers.0.block_sparse_moe." + linear;
    return torch::matmul(
               read.read_whole(module + ".lora_B.weight"),
               read.read_whole(module + ".lora_A.weight")) *
           read.options().scale();
  };
  const auto of_all =
      [](const torch::Tensor& a, const torch::Tensor& b, double scale) {
        return torch::einsum(
                   "ore,eri->eoi",
                   {b.view({b.size(0), -1, 3}), a.view({3, -1, a.size(1)})}) *
               scale;
      };
  const torch::Tensor gate_up = of_all(gate_up_a, gate_up_b, 20.0 / 4);
  const torch::Tensor down = of_all(down_a, down_b, 6.0 / 2);
  const auto expect_equal = [](const torch::Tensor& a, const torch::Tensor& b) {
    EXPECT_TRUE(torch::allclose(a, b, 1e-5, 1e-5));
  };
  for (int64_t expert = 0; expert < 3; ++expert) {
    const std::string name = "experts." + std::to_string(expert);
    expect_equal(delta(name + ".w1"), gate_up[expert].narrow(0, 0, 6));
    expect_equal(delta(name + ".w3"), gate_up[expert].narrow(0, 6, 6));
    expect_equal(delta(name + ".w2"), down[expert]);
  }
  expect_equal(delta("gate"), torch::matmul(router_b, router_a) * 3);

  // An adapter of down_proj alone has no nested base layer.
  json alone = config;
  alone["target_parameters"] = {"mlp.experts.down_proj"};
  write_adapter(folder_ / "down", alone, {tensors[2], tensors[3]});
  const AdapterFolder of_down(folder_ / "down", one_layer_of_mixtral());
  EXPECT_EQ(of_down.options().rank, 2);
  EXPECT_EQ(of_down.options().targets.size(), 3U);
  EXPECT_TRUE(torch::equal(
      of_down.read_whole(
          "model.layers.0.block_sparse_moe.experts.1.w2.lora_A.weight"),
      down_a.narrow(0, 2, 2)));

  const auto refused = [&](const json& with,
                           const std::vector<NamedTensor>& of) {
    const fs::path wrong = folder_ / "wrong";
    fs::remove_all(wrong);
    write_adapter(wrong, with, of);
    return message_of<DataError>(
        [&] { const AdapterFolder adapter(wrong, one_layer_of_mixtral()); });
  };
  EXPECT_THAT(
      refused(config, {tensors[0], {tensors[1].first, torch::zeros({11, 12})}}),
      HasSubstr("base_layer.lora_B.weight is [11, 12], expected [12, 12]"));
  EXPECT_THAT(
      refused(config, {tensors[0]}),
      HasSubstr("base_layer.lora_B.weight is missing"));
  json others = config;
  others["target_parameters"] = {"norm.weight"};
  EXPECT_THAT(refused(others, tensors), HasSubstr("target_parameters"));
  json magnitudes = config;
  magnitudes["use_dora"] = true;
  magnitudes["rank_pattern"] = json::object();
  EXPECT_THAT(
      refused(
          magnitudes,
          {tensors[4],
           tensors[5],
           {"mlp.gate.lora_magnitude_vector", torch::ones({3})}}),
      HasSubstr("routers and experts have no magnitudes here"));
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
