// A model with experts as a folder in either layout of their tensors. The
// oracle stacks the tensors of a folder with one per expert.
#include "brigade/options/expert_tensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "brigade/base/error.h"
#include "brigade/checkpoint/adapter_folder.h"
#include "brigade/checkpoint/export_model.h"
#include "brigade/checkpoint/hugging_face_export.h"
#include "brigade/checkpoint/torch_dtype.h"
#include "brigade/files/file.h"
#include "brigade/model_spec/decoder_config.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/safetensors/writer.h"
#include "tests/support/parsed_config.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_tensors.h"

namespace brigade {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Family {
  const char* name;
  json keys;  // beside those below
  // The names in files with one tensor per expert.
  const char* block = "mlp";
  const char* gate = "gate_proj";
  const char* up = "up_proj";
  const char* down = "down_proj";
};

const Family kFamilies[] = {
    {"mixtral",
     {{"num_local_experts", 3}, {"num_experts_per_tok", 2}},
     "block_sparse_moe",
     "w1",
     "w3",
     "w2"},
    {"qwen3_moe",
     {{"num_experts", 3},
      {"num_experts_per_tok", 2},
      {"moe_intermediate_size", 6},
      {"mlp_only_layers", {0}}}},
    {"qwen2_moe",
     {{"num_experts", 3},
      {"num_experts_per_tok", 2},
      {"moe_intermediate_size", 6},
      {"shared_expert_intermediate_size", 10}}},
    {"olmoe", {{"num_experts", 3}, {"num_experts_per_tok", 2}}},
    {"dots1",
     {{"n_routed_experts", 3},
      {"n_shared_experts", 1},
      {"num_experts_per_tok", 2},
      {"moe_intermediate_size", 6},
      {"first_k_dense_replace", 1}}},
    {"glm4_moe",
     {{"n_routed_experts", 3},
      {"n_shared_experts", 1},
      {"num_experts_per_tok", 2},
      {"moe_intermediate_size", 6},
      {"head_dim", 4}}}};

json config_of(const Family& family) {
  json config = {
      {"model_type", family.name},
      {"vocab_size", 20},
      {"hidden_size", 8},
      {"intermediate_size", 12},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 2},
      {"num_key_value_heads", 2},
      {"dtype", "bfloat16"}};
  config.update(family.keys);
  return config;
}

using Tensors = std::map<std::string, torch::Tensor>;

Tensors read_folder(const fs::path& path) {
  Tensors tensors;
  const SafetensorsFolder folder(path);
  for (const auto& [name, stored] : folder.tensors())
    tensors[name] = as_tensor(*stored).clone();
  return tensors;
}

// The folder with one tensor per expert, stacked as in transformers 5.
Tensors fused(Tensors separate, const Family& family) {
  Tensors all;
  for (const int64_t layer : {0, 1}) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    const std::string experts = prefix + family.block + ".experts.";
    const auto take = [&](int64_t expert, const char* linear) {
      return separate.extract(
          fmt::format("{}{}.{}.weight", experts, expert, linear));
    };
    std::vector<torch::Tensor> gate_up, down;
    for (int64_t expert = 0; expert < 3; ++expert) {
      const auto gate = take(expert, family.gate);
      if (gate.empty())
        continue;
      gate_up.push_back(
          torch::cat({gate.mapped(), take(expert, family.up).mapped()}));
      down.push_back(take(expert, family.down).mapped());
    }
    if (down.empty())  // a dense layer
      continue;
    all[prefix + "mlp.experts.gate_up_proj"] = torch::stack(gate_up);
    all[prefix + "mlp.experts.down_proj"] = torch::stack(down);
    auto router = separate.extract(prefix + family.block + ".gate.weight");
    all[prefix + "mlp.gate.weight"] = router.mapped();
  }
  all.merge(separate);
  return all;
}

std::vector<std::string> names_of(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors)
    names.push_back(name);
  return names;
}

void expect_same_bytes(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(names_of(actual), names_of(expected));
  for (const auto& [name, tensor] : expected) {
    const torch::Tensor& other = actual.at(name);
    EXPECT_EQ(other.sizes(), tensor.sizes()) << name;
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    ASSERT_EQ(other.nbytes(), tensor.nbytes()) << name;
    EXPECT_EQ(
        std::memcmp(
            other.data_ptr(), tensor.contiguous().data_ptr(), tensor.nbytes()),
        0)
        << name;
  }
}

class ExpertTensorsOf : public ::testing::TestWithParam<Family> {
 protected:
  // Writes the folder as other programs publish it, in bfloat16.
  ExpertTensorsOf() {
    torch::manual_seed(7);
    fs::create_directory(source_);
    const json config = config_of(GetParam());
    write_text_file(source_ / "config.json", config.dump());
    Tensors weights;
    for (const ParameterRow& row : list_parameters(parsed_config(config)))
      weights[row.name] = torch::randn(row.shape).to(
          row.is_float32 ? torch::kFloat : torch::kBFloat16);
    write_tensors(source_ / kSafetensorsFile, weights);
  }

  const TemporaryFolder folder_;
  const fs::path source_ = folder_ / "source";
  const fs::path out_ = folder_ / "fused";
};

TEST_P(ExpertTensorsOf, AreWrittenTogetherAsTransformersHasThemInMemory) {
  export_folder(source_, out_, {.experts = ExpertTensors::kFused});
  expect_same_bytes(read_folder(out_), fused(read_folder(source_), GetParam()));
}

TEST_P(ExpertTensorsOf, ComeBackBitForBit) {
  export_folder(
      source_,
      out_,
      {.max_shard_bytes = 1500, .experts = ExpertTensors::kFused});
  EXPECT_TRUE(fs::exists(out_ / kSafetensorsIndex));
  export_folder(out_, folder_ / "separate");
  export_folder(source_, folder_ / "never_fused");
  for (const char* file : {kSafetensorsFile, "config.json"})
    EXPECT_EQ(
        read_text_file(folder_ / "separate" / file),
        read_text_file(folder_ / "never_fused" / file))
        << file;
  expect_same_bytes(read_folder(folder_ / "separate"), read_folder(source_));
}

// Adapters of routers and expert linears, merged into a base in either layout.
TEST_P(ExpertTensorsOf, AreWrittenTogetherWithAnAdapterInThem) {
  const Family& family = GetParam();
  const DecoderConfig model = parsed_config(config_of(family));
  const AdapterOptions options{
      .rank = 2,
      .alpha = 6,
      .targets = {"q_proj", "mlp.gate", family.gate, family.down}};
  Tensors adapter;
  for (const ParameterRow& row : adapter_rows(model, options))
    adapter[row.name] = torch::randn(row.shape);
  const fs::path adapter_folder = folder_ / "adapter";
  export_adapter(
      {.out = adapter_folder,
       .model = model,
       .options = options,
       .base_model = source_.string(),
       .read = [&](const std::string& name) { return adapter.at(name); }});
  const fs::path separate = folder_ / "separate";
  export_folder(
      source_, separate, {.merges_adapter = true, .adapter = adapter_folder});
  const Tensors merged = read_folder(separate);
  const std::string down =
      fmt::format("model.layers.1.{}.experts.2.{}", family.block, family.down);
  EXPECT_TRUE(torch::allclose(
      merged.at(down + ".weight").to(torch::kFloat),
      read_folder(source_).at(down + ".weight").to(torch::kFloat) +
          3 * torch::matmul(
                  adapter.at(down + ".lora_B.weight"),
                  adapter.at(down + ".lora_A.weight")),
      1e-2,
      1e-2));
  const fs::path fused_base = folder_ / "fused_base";
  export_folder(source_, fused_base, {.experts = ExpertTensors::kFused});
  for (const fs::path& base : {source_, fused_base}) {
    export_folder(
        base,
        out_,
        {.merges_adapter = true,
         .adapter = adapter_folder,
         .experts = ExpertTensors::kFused});
    expect_same_bytes(read_folder(out_), fused(merged, family));
    fs::remove_all(out_);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families,
    ExpertTensorsOf,
    ::testing::ValuesIn(kFamilies),
    [](const auto& each) { return std::string(each.param.name); });

// A checkpoint may hold a tensor that its manifest does not describe.
TEST(ExpertTensors, OneOfAnotherShapeIsNamed) {
  const TemporaryFolder folder;
  const DecoderConfig config = parsed_config(config_of(kFamilies[0]));
  HuggingFaceExport request;
  request.out = folder / "out";
  request.config = to_hugging_face_json(config, "float32");
  request.tensors = list_parameters(config);
  request.experts = ExpertTensors::kFused;
  const std::string wrong =
      "model.layers.1.block_sparse_moe.experts.2.w3.weight";
  request.read = [&](const std::string& name) {
    for (const ParameterRow& row : request.tensors) {
      if (row.name == name && name != wrong)
        return torch::zeros(row.shape);
    }
    return torch::zeros({1, 8});  // would spread over all rows
  };
  EXPECT_THAT(
      [&] { export_hugging_face(request); },
      ThrowsMessage<DataError>(HasSubstr(
          "'" + wrong +
          "' is Float [1, 8] in the checkpoint, but the model's is F32 [12, "
          "8]")));
  EXPECT_FALSE(fs::exists(request.out));
}

}  // namespace
}  // namespace brigade
