#include "brigade/checkpoint/hugging_face.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "brigade/base/error.h"
#include "brigade/model_spec/parameter_table.h"
#include "brigade/safetensors/writer.h"
#include "tests/support/parsed_config.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/write_tensors.h"

namespace brigade {
namespace {

DecoderConfig small_config(bool tied) {
  return parsed_config(
      {{"model_type", "qwen2"},
       {"vocab_size", 21},
       {"hidden_size", 16},
       {"intermediate_size", 12},
       {"num_hidden_layers", 2},
       {"num_attention_heads", 4},
       {"num_key_value_heads", 2},
       {"tie_word_embeddings", tied}});
}

class PretrainedTest : public ::testing::TestWithParam<bool> {
 protected:
  PretrainedTest() {
    torch::manual_seed(9);
    for (const ParameterRow& info : list_parameters(config_))
      weights_[info.name] = torch::randn(info.shape).to(torch::kBFloat16);
    write_weights();
  }
  void write_weights() const {
    write_tensors(folder_ / "model.safetensors", weights_);
  }
  const DecoderConfig config_ = small_config(GetParam());
  const TemporaryFolder folder_;
  std::map<std::string, torch::Tensor> weights_;
};

TEST_P(PretrainedTest, AWeightThatIsNotFiniteIsNamedWithItsFile) {
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  weights_[name].view({-1})[3] = NAN;
  write_weights();
  std::vector<Param> params;
  for (const ParameterRow& row : list_parameters(config_)) {
    params.push_back(make_param(
        row,
        whole_model(config_),
        {.shape = row.shape},
        torch::zeros(row.shape, torch::kBFloat16)));
  }
  EXPECT_THAT(
      [&] { load_pretrained(folder_, config_, params); },
      ::testing::ThrowsMessage<DataError>(::testing::AllOf(
          ::testing::HasSubstr("'" + name + "'"),
          ::testing::HasSubstr((folder_ / "model.safetensors").string()),
          ::testing::HasSubstr("1 values that are not finite"))));
}

// Each rank's part, put back in its place, equals the tensor of the file;
// everything else is zero padding.
TEST_P(PretrainedTest, EveryTensorParallelLayoutHoldsTheFilesWeights) {
  for (const int tp : {1, 2, 4}) {
    std::map<std::string, torch::Tensor> whole;
    for (const auto& [name, weight] : weights_)
      whole[name] = torch::full_like(weight, NAN);
    for (int rank = 0; rank < tp; ++rank) {
      std::vector<Param> params;
      for (const ParameterRow& row : list_parameters(config_)) {
        params.push_back(make_param(
            row,
            whole_model(config_),
            shard_parameter(
                row, {.tp = tp}, {.tp = rank}, TokenLayout::kReplicated),
            {}));
        params.back().tensor =
            torch::full(params.back().cut.shape, NAN, torch::kBFloat16);
      }
      load_pretrained(folder_, config_, params);
      for (const Param& param : params) {
        torch::Tensor& place = whole.at(param.name);
        if (param.cut.slice.dim == kNotCut) {
          place.copy_(param.tensor);
          continue;
        }
        const int64_t dim = param.cut.slice.dim;
        const int64_t filled = param.cut.slice.length();
        place.narrow(dim, param.cut.slice.begin, filled)
            .copy_(param.tensor.narrow(dim, 0, filled));
        EXPECT_EQ(
            param.tensor.slice(dim, filled).abs().sum().item<double>(), 0.0);
      }
    }
    for (const auto& [name, weight] : weights_)
      EXPECT_TRUE(torch::equal(whole.at(name), weight)) << name << " tp " << tp;
  }
}

TEST_P(PretrainedTest, AnotherModelsFilesAreRefusedOnEveryRank) {
  DecoderConfig deeper = config_;
  deeper.num_hidden_layers = 3;
  EXPECT_THAT(
      [&] { load_pretrained(folder_, deeper, {}); },
      ::testing::ThrowsMessage<DataError>(
          ::testing::HasSubstr("model.layers.2.mlp.up_proj.weight")));
}

INSTANTIATE_TEST_SUITE_P(
    Heads,
    PretrainedTest,
    ::testing::Bool(),
    [](const auto& test) { return test.param ? "Tied" : "Untied"; });

}  // namespace
}  // namespace brigade
