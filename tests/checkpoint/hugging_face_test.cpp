#include "brigade/checkpoint/hugging_face.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <torch/types.h>

#include <fstream>

#include "brigade/base/error.h"
#include "brigade/base/units.h"
#include "brigade/safetensors/writer.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_tensors.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using NamedTensors = std::map<std::string, torch::Tensor>;

ParameterRow row(const std::string& name, std::vector<int64_t> shape) {
  ParameterRow result;
  result.name = name;
  result.shape = std::move(shape);
  return result;
}

std::vector<ParameterRow> expected_of(const NamedTensors& tensors) {
  std::vector<ParameterRow> expected;
  for (const auto& [name, tensor] : tensors)
    expected.push_back(row(name, tensor.sizes().vec()));
  return expected;
}

class HuggingFaceTest : public ::testing::Test {
 protected:
  HuggingFaceTest() { torch::manual_seed(3); }

  void write(const NamedTensors& tensors) {
    write_tensors(folder_ / kSafetensorsFile, tensors);
  }

  // The message with which the folder is refused for these tensors.
  std::string refusal(const std::vector<ParameterRow>& expected) {
    try {
      load_weights(SafetensorsFolder(folder_.path()), expected, {});
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(folder_.path().string()));
      return error.what();
    }
    return "accepted";
  }

  const TemporaryFolder folder_;
};

TEST_F(HuggingFaceTest, LoadsEverySliceAndDtypeIntoEveryDtype) {
  NamedTensors tensors;
  for (const auto dtype :
       {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    tensors[fmt::format("w{}", static_cast<int>(dtype))] =
        torch::randn({6, 8}).to(dtype);
  }
  write(tensors);
  const SafetensorsFolder folder(folder_.path());
  for (const auto& [name, tensor] : tensors) {
    for (const Slice& slice :
         {Slice{}, Slice{0, 2, 4}, Slice{1, 6, 8}, Slice{1, 3, 3}}) {
      const torch::Tensor oracle =
          tensor.slice(slice.dim, slice.begin, slice.dim < 0 ? 8 : slice.end);
      for (const auto dtype :
           {torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
        const torch::Tensor loaded = torch::empty(oracle.sizes(), dtype);
        load_weights(
            folder,
            expected_of(tensors),
            {{.name = name, .tensor = loaded, .slice = slice}});
        EXPECT_TRUE(torch::equal(loaded, oracle.to(dtype)))
            << name << " along " << slice.dim << " from " << slice.begin;
      }
    }
  }
}

TEST_F(HuggingFaceTest, LoadsIntoAParameterThatNeedsAGradientAndIsAView) {
  const NamedTensors tensors = {{"w", torch::randn({4, 3})}};
  write(tensors);
  torch::Tensor storage = torch::zeros({8, 3});
  torch::Tensor view = storage.slice(0, 2, 6).requires_grad_();
  load_weights(
      SafetensorsFolder(folder_.path()), expected_of(tensors), {{"w", view}});
  EXPECT_TRUE(torch::equal(storage.slice(0, 2, 6), tensors.at("w")));
  EXPECT_EQ(storage.slice(0, 6).count_nonzero().item<int64_t>(), 0);
}

TEST_F(HuggingFaceTest, LoadsAFileWhoseDataAreNotAligned) {
  const torch::Tensor values = torch::randn({3});
  std::string header =
      R"({"w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}})";
  header.append((8 - header.size() % 8) % 8 + 3, ' ');
  const uint64_t length = header.size();
  std::ofstream file(folder_ / kSafetensorsFile, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << header;
  file.write(static_cast<const char*>(values.data_ptr()), 12);
  file.close();
  const torch::Tensor loaded = torch::empty({3});
  load_weights(
      SafetensorsFolder(folder_.path()), {row("w", {3})}, {{"w", loaded}});
  EXPECT_TRUE(torch::equal(loaded, values));
}

TEST_F(HuggingFaceTest, LoadsFromShards) {
  const NamedTensors one = {{"a", torch::randn({4})}};
  const NamedTensors two = {{"b", torch::randn({2, 2})}};
  write_tensors(folder_ / "x-00001-of-00002.safetensors", one);
  write_tensors(folder_ / "x-00002-of-00002.safetensors", two);
  std::ofstream(folder_ / kSafetensorsIndex)
      << R"({"weight_map":{"a":"x-00001-of-00002.safetensors",)"
      << R"("b":"x-00002-of-00002.safetensors"}})";
  const torch::Tensor a = torch::empty({2}), b = torch::empty({2, 2});
  load_weights(
      SafetensorsFolder(folder_.path()),
      {row("a", {4}), row("b", {2, 2})},
      {{.name = "a", .tensor = a, .slice = {0, 2, 4}}, {"b", b}});
  EXPECT_TRUE(torch::equal(a, one.at("a").slice(0, 2)));
  EXPECT_TRUE(torch::equal(b, two.at("b")));
}

TEST_F(HuggingFaceTest, MissingSurplusAndWrongTensorsAreAllListed) {
  write(
      {{"m.kept", torch::randn({2})},
       {"m.bent", torch::randn({2, 3})},
       {"m.counted", torch::ones({2}, torch::kInt32)},
       {"m.extra", torch::randn({1})},
       {"model.layers.0.up.weight", torch::randn({1})},
       {"model.layers.1.up.weight", torch::randn({1})},
       {"model.layers.0.mask", torch::ones({2}, torch::kInt32)},
       {"score.weight", torch::randn({1})}});
  EXPECT_THAT(
      refusal(
          {row("m.kept", {2}),
           row("m.bent", {3, 2}),
           row("m.counted", {2}),
           row("model.layers.0.up.weight", {1}),
           row("absent.one", {1}),
           row("absent.two", {1})}),
      AllOf(
          HasSubstr("missing: absent.one, absent.two\n"),
          HasSubstr("surplus: m.extra, model.layers.1.up.weight\n"),
          HasSubstr("m.bent is [2, 3], expected [3, 2]"),
          HasSubstr("m.counted is I32, expected F64, F32, F16 or BF16"),
          Not(HasSubstr("m.kept"))));
}

TEST_F(HuggingFaceTest, NothingIsWrittenWhenAnythingIsWrong) {
  write({{"a", torch::randn({2})}});
  const torch::Tensor a = torch::zeros({2});
  EXPECT_THROW(
      load_weights(
          SafetensorsFolder(folder_.path()),
          {row("a", {2}), row("b", {2})},
          {{"a", a}}),
      DataError);
  EXPECT_EQ(a.count_nonzero().item<int64_t>(), 0);
}

TEST_F(HuggingFaceTest, BuffersOfOldFilesAreIgnored) {
  write(
      {{"a", torch::randn({2})},
       {"model.layers.0.self_attn.rotary_emb.inv_freq", torch::randn({4})}});
  EXPECT_EQ(refusal({row("a", {2})}), "accepted");
}

TEST_F(HuggingFaceTest, ATiedModelTakesAHeadThatEqualsItsEmbeddingOnly) {
  std::vector<ParameterRow> tied = {row("model.embed_tokens.weight", {4, 2})};
  tied[0].tied_head = "lm_head.weight";
  const torch::Tensor embedding = torch::randn({4, 2});
  write({{"model.embed_tokens.weight", embedding}});
  EXPECT_EQ(refusal(tied), "accepted");
  write(
      {{"model.embed_tokens.weight", embedding},
       {"lm_head.weight", embedding}});
  EXPECT_EQ(refusal(tied), "accepted");
  write(
      {{"model.embed_tokens.weight", embedding},
       {"lm_head.weight", embedding + 1}});
  EXPECT_THAT(refusal(tied), HasSubstr("lm_head.weight differs"));
}

TEST_F(HuggingFaceTest, ATiedModelsMatrixMayBeStoredUnderTheHeadsNameAlone) {
  std::vector<ParameterRow> tied = {row("model.embed_tokens.weight", {4, 2})};
  tied[0].tied_head = "lm_head.weight";
  const torch::Tensor matrix = torch::randn({4, 2});
  write({{"lm_head.weight", matrix}});
  const torch::Tensor loaded = torch::zeros({4, 2});
  load_weights(
      SafetensorsFolder(folder_.path()),
      tied,
      {{"model.embed_tokens.weight", loaded}});
  EXPECT_TRUE(torch::equal(loaded, matrix));
}

// GLM-4-MoE's files have such a layer. A surplus layer without eh_proj belongs
// to the model: its config has too few layers.
TEST_F(HuggingFaceTest, ALayerForFurtherTokensIsLeftOut) {
  std::vector<ParameterRow> expected = {row("model.layers.0.up.weight", {1})};
  expected[0].layer = 0;
  const torch::Tensor up = torch::randn({1});
  write(
      {{"model.layers.0.up.weight", up},
       {"model.layers.1.up.weight", torch::randn({1})},
       {"model.layers.1.eh_proj.weight", torch::randn({1})}});
  const torch::Tensor loaded = torch::zeros({1});
  load_weights(
      SafetensorsFolder(folder_.path()),
      expected,
      {{"model.layers.0.up.weight", loaded}});
  EXPECT_TRUE(torch::equal(loaded, up));
  write(
      {{"model.layers.0.up.weight", up},
       {"model.layers.1.up.weight", torch::randn({1})},
       {"model.layers.2.eh_proj.weight", torch::randn({1})}});
  EXPECT_THAT(
      refusal(expected), HasSubstr("surplus: model.layers.1.up.weight"));
}

// transformers' LlamaModel.save_pretrained() writes these names.
TEST_F(HuggingFaceTest, AModelSavedWithoutItsHeadHasNamesWithoutModel) {
  const torch::Tensor norm = torch::randn({2});
  const torch::Tensor embedding = torch::randn({4, 2});
  std::vector<ParameterRow> expected = {
      row("model.embed_tokens.weight", {4, 2}), row("model.norm.weight", {2})};
  expected[0].tied_head = "lm_head.weight";
  write({{"embed_tokens.weight", embedding}, {"norm.weight", norm}});
  const torch::Tensor loaded = torch::zeros({2});
  load_weights(
      SafetensorsFolder(folder_.path()),
      expected,
      {{"model.norm.weight", loaded}});
  EXPECT_TRUE(torch::equal(loaded, norm));
  write(
      {{"embed_tokens.weight", embedding},
       {"norm.weight", norm},
       {"norm.bias", norm}});
  EXPECT_THAT(refusal(expected), HasSubstr("surplus: norm.bias"));
}

TEST_F(HuggingFaceTest, AnUntiedModelNeedsItsHead) {
  write({{"model.embed_tokens.weight", torch::randn({4, 2})}});
  ParameterRow head = row("lm_head.weight", {4, 2});
  head.place = Place::kHead;
  head.cut.unit = CutUnit::kVocabulary;
  EXPECT_THAT(
      refusal({row("model.embed_tokens.weight", {4, 2}), head}),
      HasSubstr("missing: lm_head.weight (is tie_word_embeddings true?)"));
}

TEST_F(HuggingFaceTest, AGroupStoredAsOneTensorIsSplitOnRead) {
  const std::string attention = "model.layers.0.self_attn.";
  const std::string mlp = "model.layers.0.mlp.";
  const torch::Tensor q = torch::randn({8, 6}), k = torch::randn({4, 6}),
                      v = torch::randn({4, 6}), q_bias = torch::randn({8}),
                      k_bias = torch::randn({4}), v_bias = torch::randn({4}),
                      gate = torch::randn({10, 6}), up = torch::randn({10, 6});
  write(
      {{attention + "qkv_proj.weight", torch::cat({q, k, v})},
       {attention + "qkv_proj.bias", torch::cat({q_bias, k_bias, v_bias})},
       {mlp + "gate_up_proj.weight", torch::cat({gate, up})}});
  const std::vector<std::pair<std::string, torch::Tensor>> separate = {
      {attention + "q_proj.weight", q},
      {attention + "q_proj.bias", q_bias},
      {attention + "k_proj.weight", k},
      {attention + "k_proj.bias", k_bias},
      {attention + "v_proj.weight", v},
      {attention + "v_proj.bias", v_bias},
      {mlp + "gate_proj.weight", gate},
      {mlp + "up_proj.weight", up}};
  std::vector<ParameterRow> expected;
  for (const auto& [name, tensor] : separate) {
    expected.push_back(row(name, tensor.sizes().vec()));
    const bool is_mlp = name.starts_with(mlp);
    expected.back().group = (is_mlp ? mlp + "gate_up" : attention + "qkv") +
                            "_proj" + name.substr(name.rfind('.'));
  }
  const SafetensorsFolder folder(folder_.path());
  for (const auto& [name, tensor] : separate) {
    const torch::Tensor half = tensor.chunk(2)[1];
    const torch::Tensor loaded = torch::empty_like(half);
    const Slice slice{0, half.size(0), tensor.size(0)};
    load_weights(
        folder, expected, {{.name = name, .tensor = loaded, .slice = slice}});
    EXPECT_TRUE(torch::equal(loaded, half)) << name;
  }
  expected.back().shape[0] = 9;
  EXPECT_THAT(
      refusal(expected),
      HasSubstr("gate_up_proj.weight is [20, 6], expected [19, 6]"));
}

// The peak of resident memory since the last reset, from the kernel.
int64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (word == "VmHWM:") {
      int64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * KiB;
    }
  }
  return -1;
}

TEST_F(HuggingFaceTest, PeakMemoryIsTheShardPlusOneTensor) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's own memory would count";
#endif
  // Measure memory in use, not what malloc keeps: from here on a freed tensor
  // is returned to the system at once.
  ASSERT_EQ(::mallopt(M_MMAP_THRESHOLD, static_cast<int>(MiB)), 1);
  // Half a tensor of slack for what the process maps besides, so that a second
  // tensor in memory at once shows whatever the machine's page sizes are.
  constexpr int64_t kTensorBytes = 16 * MiB;
  constexpr int64_t kTensors = 8;
  constexpr int64_t kParts = 4;
  const std::vector<int64_t> shape = {1024, kTensorBytes / 4 / 1024};
  std::vector<ParameterRow> expected;
  {
    NamedTensors tensors;
    for (int64_t i = 0; i < kTensors; ++i)
      tensors[fmt::format("w{}", i)] = torch::randn(shape);
    write(tensors);
    expected = expected_of(tensors);
  }
  std::ofstream("/proc/self/clear_refs") << "5\n";  // resets the peak
  const int64_t before = peak_resident_bytes();
  ASSERT_GT(before, 0);
  std::vector<State> parts;
  const int64_t columns = shape[1] / kParts;
  for (const ParameterRow& tensor : expected) {
    parts.push_back(
        {.name = tensor.name,
         .tensor = torch::empty({shape[0], columns}),
         .slice = {1, columns, 2 * columns}});
  }
  load_weights(SafetensorsFolder(folder_.path()), expected, parts);
  const int64_t shard_bytes = kTensors * kTensorBytes / kParts;
  EXPECT_LT(
      peak_resident_bytes() - before,
      shard_bytes + kTensorBytes + kTensorBytes / kParts + kTensorBytes / 2);
}

// Two experts of gate, up [3, 2] and down [2, 3].
std::vector<ParameterRow> expert_rows(const std::string& block) {
  std::vector<ParameterRow> rows;
  for (int64_t expert = 0; expert < 2; ++expert) {
    const std::string prefix = fmt::format("model.layers.0.{}.experts.", block);
    const auto add =
        [&](const char* name, const char* stack, bool is_down, int64_t first) {
          ParameterRow each =
              row(fmt::format("{}{}.{}.weight", prefix, expert, name),
                  is_down ? std::vector<int64_t>{2, 3}
                          : std::vector<int64_t>{3, 2});
          each.expert = expert;
          each.stack = prefix + stack;
          each.stack_row = first;
          rows.push_back(each);
        };
    add("gate_proj", "gate_up_proj", false, expert * 6);
    add("up_proj", "gate_up_proj", false, expert * 6 + 3);
    add("down_proj", "down_proj", true, expert * 2);
  }
  return rows;
}

// transformers stacks them in memory; Mixtral's block has another name there.
TEST_F(HuggingFaceTest, ExpertsAreTakenFromTheStackOfAll) {
  const torch::Tensor gate_up = torch::randn({2, 6, 2});
  const torch::Tensor down = torch::randn({2, 2, 3});
  write(
      {{"model.layers.0.mlp.experts.gate_up_proj", gate_up},
       {"model.layers.0.mlp.experts.down_proj", down}});
  for (const std::string block : {"mlp", "block_sparse_moe"}) {
    const auto rows = expert_rows(block);
    const torch::Tensor up = torch::empty({3, 2});
    const torch::Tensor half_of_gate = torch::empty({1, 2});
    const torch::Tensor second_down = torch::empty({2, 3});
    load_weights(
        SafetensorsFolder(folder_.path()),
        rows,
        {{rows[4].name, up},
         {.name = rows[3].name, .tensor = half_of_gate, .slice = {0, 1, 2}},
         {rows[5].name, second_down}});
    EXPECT_TRUE(torch::equal(up, gate_up[1].slice(0, 3)));
    EXPECT_TRUE(torch::equal(half_of_gate, gate_up[1].slice(0, 1, 2)));
    EXPECT_TRUE(torch::equal(second_down, down[1]));
  }
}

TEST_F(HuggingFaceTest, AStackOfAnotherShapeIsRefused) {
  write(
      {{"model.layers.0.mlp.experts.gate_up_proj", torch::randn({2, 2, 6})},
       {"model.layers.0.mlp.experts.down_proj", torch::randn({2, 2, 3})}});
  EXPECT_THAT(
      refusal(expert_rows("mlp")),
      HasSubstr("wrong: model.layers.0.mlp.experts.gate_up_proj is [2, 2, 6], "
                "expected [2, 6, 2]"));
}

TEST_F(HuggingFaceTest, AMissingExpertIsNamed) {
  NamedTensors tensors;
  for (const ParameterRow& each : expert_rows("mlp")) {
    if (each.name.find(".1.up_proj") == std::string::npos)
      tensors[each.name] = torch::randn(each.shape);
  }
  write(tensors);
  EXPECT_THAT(
      refusal(expert_rows("mlp")),
      HasSubstr("missing: model.layers.0.mlp.experts.1.up_proj.weight"));
}

}  // namespace
}  // namespace brigade
