// A Hugging Face folder goes through training without a step and comes out as
// it was, under every kind of layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/checkpoint/export_model.h"
#include "brigade/files/file.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/safetensors/folder.h"
#include "tests/support/parsed_config.h"
#include "tests/support/program.h"
#include "tests/support/train_as_threads.h"
#include "tests/support/write_tensors.h"

#include <torch/types.h>

#include <cstring>

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// What came with the model and must come out again.
const std::map<std::string, std::string> kFiles = {
    {"tokenizer.json",
     R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})"},
    {"tokenizer_config.json", R"({"eos_token": "b", "model_max_length": 9})"},
    {"special_tokens_map.json", R"({"eos_token": "b"})"},
    {"chat_template.jinja", "{{ messages }}"},
    {"generation_config.json", R"({"do_sample": true, "eos_token_id": [2]})"}};

struct Model {
  const char* name;
  json changes;  // to the tiny Llama's config
  std::string dtype = "bfloat16";
};

void PrintTo(const Model& model, std::ostream* out) {
  *out << model.name;
}

class RoundTrip : public ::testing::TestWithParam<Model> {
 protected:
  RoundTrip() : source_(folder_ / "source") {
    fs::create_directory(source_);
    config_ = testing::tiny_run("")["model"]["config"];
    config_["torch_dtype"] = GetParam().dtype;
    config_["pad_token_id"] = 7;
    config_["_name_or_path"] = "somewhere/tiny";
    config_["use_cache"] = false;
    config_["task_specific_params"] = {{"nested", {1, 2}}};
    config_.update(GetParam().changes);
    testing::write_file(source_ / "config.json", config_.dump());
    for (const auto& [name, text] : kFiles)
      testing::write_file(source_ / name, text);

    const DecoderConfig decoder = parsed_config(config_);
    torch::manual_seed(11);
    const bool is_bf16 = GetParam().dtype == "bfloat16";
    std::map<std::string, torch::Tensor> tensors;
    for (const ParameterRow& info : list_parameters(decoder))
      tensors[info.name] = torch::randn(info.shape)
                               .to(is_bf16 ? torch::kBFloat16 : torch::kFloat);
    write_tensors(source_ / "model.safetensors", tensors);

    json run = testing::tiny_run(testing::prepare_bytes(
        folder_ / "tokens", testing::made_up_text(3000)));
    // A dataset of another program does not say which tokenizer made it.
    fs::remove(folder_ / "tokens.json");
    run["model"] = {
        {"name", source_.string()},
        {"init", "pretrained"},
        {"dtype", GetParam().dtype}};
    run["dataset"]["tokenizer"] = (source_ / "tokenizer.json").string();
    run["training"]["total_train_steps"] = 0;
    run["training"]["gradient_accumulation_steps"] = 4;
    run["logging"]["run_dir"] = (folder_ / "run").string();
    testing::write_file(folder_ / "run.json", run.dump());
  }

  void expect_same_tensors(const fs::path& out) const {
    const SafetensorsFolder expected(source_);
    const SafetensorsFolder actual(out);
    ASSERT_EQ(actual.tensors().size(), expected.tensors().size());
    for (const auto& [name, tensor] : expected.tensors()) {
      const SafetensorsTensor* found = actual.find(tensor->name);
      ASSERT_NE(found, nullptr) << tensor->name;
      EXPECT_EQ(found->dtype, tensor->dtype) << tensor->name;
      EXPECT_EQ(found->shape, tensor->shape) << tensor->name;
      ASSERT_EQ(found->data.size(), tensor->data.size()) << tensor->name;
      EXPECT_EQ(
          std::memcmp(
              found->data.data(), tensor->data.data(), found->data.size()),
          0)
          << tensor->name;
    }
  }

  testing::RunsFolder folder_;
  fs::path source_;
  json config_;
};

TEST_P(RoundTrip, WithoutAStepNothingChangesUnderAnyLayout) {
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"dp_size=2"},
      {"tp_size=2"},
      {"tp_size=4"},
      {"pp_size=2"},
      {"pp_size=4", "pp_engine=zero_bubble"},
      {"pp_size=2", "pp_engine=interleaved_1f1b", "pp_virtual_stages=2"},
      {"cp_size=2"},
      {"tp_size=2", "pp_size=2", "sequence_parallel=true"},
      {"dp_size=2", "tp_size=2", "pp_size=2"}};
  const int ranks[] = {1, 2, 2, 4, 2, 4, 2, 2, 4, 8};
  for (size_t i = 0; i < layouts.size(); ++i) {
    std::vector<std::string> overrides;
    for (const std::string& text : layouts[i])
      overrides.push_back("distributed." + text);
    SCOPED_TRACE(::testing::PrintToString(overrides));
    testing::train_as_threads(folder_ / "run.json", ranks[i], overrides);
    const fs::path out = folder_ / "out";
    const ExportedModel model = export_checkpoint(folder_ / "run", out);
    EXPECT_EQ(model.step, 0);
    expect_same_tensors(out);

    const json exported = json::parse(testing::read_file(out / "config.json"));
    for (const auto& [key, value] : config_.items())
      EXPECT_EQ(exported.value(key, json("absent")), value) << key;
    for (const auto& [name, text] : kFiles)
      EXPECT_EQ(testing::read_file(out / name), text) << name;
    fs::remove_all(out);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    RoundTrip,
    ::testing::Values(
        Model{"tied", json::object()},
        Model{"untied", {{"tie_word_embeddings", false}}, "float32"},
        Model{
            "qwen2",
            {{"model_type", "qwen2"},
             {"architectures", {"Qwen2ForCausalLM"}},
             {"max_window_layers", 4}}}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace brigade
