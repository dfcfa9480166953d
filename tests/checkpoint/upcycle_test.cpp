// A dense model's folder converted to one with experts: the logits are equal,
// and models without a counterpart are refused.
#include "brigade/model_spec/upcycle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/checkpoint/export_model.h"
#include "brigade/checkpoint/hugging_face.h"
#include "brigade/files/file.h"
#include "brigade/model/decoder_model.h"
#include "brigade/model/init_weights.h"
#include "brigade/safetensors/writer.h"
#include "tests/support/message_of.h"
#include "tests/support/parsed_config.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_tensors.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

json dense(const char* architecture) {
  return {
      {"architectures", {architecture}},
      {"vocab_size", 40},
      {"hidden_size", 16},
      {"intermediate_size", 20},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 4},
      {"max_position_embeddings", 32},
      {"rms_norm_eps", 1e-5},
      {"initializer_range", 0.5}};
}

class Upcycle : public ::testing::Test {
 protected:
  void write_dense(const json& config) {
    fs::create_directory(dense_);
    write_text_file(dense_ / "config.json", config.dump());
    torch::manual_seed(5);
    std::map<std::string, torch::Tensor> weights;
    for (const ParameterRow& row : list_parameters(parsed_config(config)))
      weights[row.name] = torch::randn(row.shape) / 4;
    write_tensors(dense_ / kSafetensorsFile, weights);
  }

  ExportedModel upcycle(const UpcycleOptions& options) const {
    ExportOptions exported;
    exported.upcycle = options;
    exported.initial_router = [](const ParameterRow& row) {
      return initial_weight(row, 0);
    };
    return export_folder(dense_, sparse_, exported);
  }

  static std::shared_ptr<DecoderModel> model_in(const fs::path& path) {
    const DecoderConfig config =
        parsed_config(json::parse(read_text_file(path / "config.json")));
    const auto model = std::make_shared<DecoderModel>(
        std::make_shared<ModelContext>(single_rank_context(config)),
        whole_model(config));
    const SafetensorsFolder folder(path);
    std::vector<State> parts;
    const torch::NoGradGuard no_grad;
    for (const auto& each : model->named_parameters())
      parts.push_back({.name = each.key(), .tensor = each.value()});
    load_weights(folder, list_parameters(config), parts);
    return model;
  }

  const TemporaryFolder folder_;
  const fs::path dense_ = folder_ / "dense";
  const fs::path sparse_ = folder_ / "sparse";
};

class UpcycleOf : public Upcycle,
                  public ::testing::WithParamInterface<const char*> {};

TEST_P(UpcycleOf, BeginsAsTheDenseModel) {
  write_dense(dense(GetParam()));
  upcycle({.experts = 5, .per_token = 3});
  const auto before = model_in(dense_);
  const auto after = model_in(sparse_);
  const ExpertsDescription& experts =
      *after->context().description.layers[1].experts;
  EXPECT_EQ(experts.count, 5);
  EXPECT_EQ(experts.per_token, 3);
  torch::manual_seed(6);
  const torch::Tensor ids = torch::randint(40, {3, 11}, torch::kLong);
  const torch::Tensor expected = before->logits(ids);
  EXPECT_GT(expected.std().item<double>(), 0.1);
  EXPECT_TRUE(torch::allclose(after->logits(ids), expected, 1e-5, 1e-5));
  // Each layer has a router with random weights.
  int routers = 0;
  for (const auto& each : after->named_parameters()) {
    if (!each.key().ends_with(".gate.weight"))
      continue;
    EXPECT_NEAR(each.value().std().item<double>(), 0.5, 0.15) << each.key();
    ++routers;
  }
  EXPECT_EQ(routers, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Architectures,
    UpcycleOf,
    ::testing::Values(
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Qwen3ForCausalLM"),
    [](const auto& each) { return std::string(each.param); });

TEST_F(Upcycle, KeepsOtherKeysOfTheConfigAndSaysWhatItIs) {
  json config = dense("LlamaForCausalLM");
  config["model_type"] = "llama";
  config["pad_token_id"] = 7;
  config["mlp_bias"] = false;
  write_dense(config);
  const ExportedModel model = upcycle({.experts = 4, .per_token = 2});
  const json written = json::parse(read_text_file(sparse_ / "config.json"));
  EXPECT_EQ(written["architectures"][0], "MixtralForCausalLM");
  EXPECT_EQ(written["model_type"], "mixtral");
  EXPECT_EQ(written["num_local_experts"], 4);
  EXPECT_EQ(written["num_experts_per_tok"], 2);
  EXPECT_EQ(written["pad_token_id"], 7);
  // Three more copies of each MLP, and a router per layer.
  EXPECT_EQ(
      model.parameters,
      parameter_count(parsed_config(config)) + 2 * (3 * 3 * 16 * 20 + 4 * 16));
}

TEST_F(Upcycle, NamesModelsWithoutCounterpart) {
  const auto error_of = [](const json& config, const UpcycleOptions& options) {
    return message_of<ConfigError>(
        [&] { upcycled(parsed_config(config), options); });
  };
  EXPECT_THAT(
      error_of(dense("Qwen2ForCausalLM"), {}),
      HasSubstr("Qwen2ForCausalLM has no counterpart with experts"));
  EXPECT_THAT(
      error_of(dense("LlamaForCausalLM"), {.experts = 2, .per_token = 3}),
      HasSubstr("3 experts for each token, but there are 2"));
  json biased = dense("LlamaForCausalLM");
  biased["mlp_bias"] = true;
  EXPECT_THAT(error_of(biased, {}), HasSubstr("has biases"));
}

}  // namespace
}  // namespace brigade
