// When a model's adapters lose some of their inputs.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "brigade/base/hash.h"
#include "brigade/model/decoder_model.h"
#include "tests/support/compare.h"

namespace brigade {
namespace {

DecoderConfig tiny_llama() {
  DecoderConfig config;
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  return config;
}

DecoderConfig tiny_qwen2_moe() {
  DecoderConfig config = tiny_llama();
  config.architecture = Architecture::kQwen2Moe;
  config.experts = ExpertsConfig{
      .num_experts = 4,
      .num_experts_per_tok = 2,
      .width = 16,
      .shared_width = 24};
  return config;
}

std::shared_ptr<DecoderModel> adapted_model(
    const DecoderConfig& config,
    Recompute recompute) {
  ModelContext context = single_rank_context(config);
  context.description.adapter = {
      .rank = 3, .alpha = 6, .dropout = 0.5, .targets = {"all-linear"}};
  context.recompute = recompute;
  auto model = std::make_shared<DecoderModel>(
      std::make_shared<const ModelContext>(std::move(context)),
      whole_model(config));
  torch::manual_seed(1);
  const torch::NoGradGuard no_gradients;
  for (const auto& item : model->named_parameters()) {
    item.value().set_requires_grad(
        item.key().find("lora_") != std::string::npos);
    torch::Tensor(item.value()).normal_(item.value().dim() == 1, 0.2);
  }
  return model;
}

// Two rows of eight tokens from that sample on.
MicroBatch tokens_from(int64_t sample) {
  const torch::Tensor ids = torch::arange(16).mul(7).remainder(61);
  torch::Tensor keys = torch::empty({2, 8}, torch::kLong);
  for (int64_t row = 0; row < 2; ++row)
    for (int64_t token = 0; token < 8; ++token)
      keys[row][token] = static_cast<int64_t>(
          mix_bits(static_cast<uint64_t>((sample + row) * 8 + token)));
  return {
      .ids = ids.view({2, 8}),
      .targets = (ids + 1).remainder(61).view({2, 8}),
      .document_starts = {},
      .token_keys = keys};
}

double loss_of(DecoderModel& model, const MicroBatch& batch) {
  return model.forward(batch, {}, torch::arange(8)).item<double>();
}

class AdapterDropoutOfModel : public ::testing::TestWithParam<DecoderConfig> {};

TEST_P(AdapterDropoutOfModel, AppliesToTrainingAlone) {
  const auto model = adapted_model(GetParam(), Recompute::kNone);
  MicroBatch batch = tokens_from(0);
  const double dropped = loss_of(*model, batch);
  EXPECT_EQ(loss_of(*model, batch), dropped);
  EXPECT_NE(loss_of(*model, tokens_from(2)), dropped);
  double evaluated = 0;
  {
    const torch::NoGradGuard no_gradients;
    evaluated = loss_of(*model, batch);
  }
  EXPECT_NE(evaluated, dropped);
  batch.token_keys = torch::Tensor();
  EXPECT_EQ(loss_of(*model, batch), evaluated);
}

TEST_P(AdapterDropoutOfModel, IsTheSameWhereALayerIsComputedAgain) {
  std::map<std::string, torch::Tensor> expected;
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const auto model = adapted_model(GetParam(), recompute);
    const torch::Tensor loss =
        model->forward(tokens_from(3), {}, torch::arange(8));
    // As a pipeline runs them: another forward before that one's backward.
    model->forward(tokens_from(5), {}, torch::arange(8));
    loss.backward();
    for (const auto& item : model->named_parameters()) {
      if (!item.value().requires_grad())
        continue;
      const torch::Tensor& gradient = item.value().grad();
      if (recompute == Recompute::kNone) {
        EXPECT_GT(gradient.abs().sum().item<double>(), 0) << item.key();
        expected[item.key()] = gradient;
      } else {
        // Up to the order of two sums: another mask would be another gradient.
        EXPECT_LT(
            testing::relative_error(gradient, expected.at(item.key())), 1e-5)
            << item.key();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    AdapterDropoutOfModel,
    ::testing::Values(tiny_llama(), tiny_qwen2_moe()),
    [](const auto& test) { return test.param.experts ? "experts" : "dense"; });

}  // namespace
}  // namespace brigade
