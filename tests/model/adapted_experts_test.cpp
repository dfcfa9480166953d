// Adapters of routers and experts, against the model whose weights have them
// merged: by the chain rule, of W + s B A the gradients of A and B are
// s B^T dW and s dW A^T.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <string>

#include "brigade/model/decoder_model.h"
#include "brigade/model_spec/adapter.h"
#include "tests/support/compare.h"

namespace brigade {
namespace {

using torch::Tensor;
using Named = std::map<std::string, Tensor>;

constexpr int64_t kVisitingTokens = 16;
constexpr double kScale = 2;  // alpha 6, rank 3

// More experts than the tokens visit.
DecoderConfig model_with_experts(Architecture architecture) {
  DecoderConfig config;
  config.architecture = architecture;
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.experts = ExpertsConfig{
      .num_experts = 24,
      .num_experts_per_tok = 1,
      .width = 16,
      .shared_width = architecture == Architecture::kQwen2Moe ? 24 : 0};
  return config;
}

std::shared_ptr<DecoderModel> make_model(
    const DecoderConfig& config,
    const AdapterOptions& adapter) {
  ModelContext context = single_rank_context(config);
  context.description.adapter = adapter;
  context.router_losses = {.balance = 0.1, .z = 0.01};
  return std::make_shared<DecoderModel>(
      std::make_shared<const ModelContext>(std::move(context)),
      whole_model(config));
}

Named weights_of(const DecoderModel& model) {
  Named weights;
  for (const auto& item : model.named_parameters())
    weights[item.key()] = item.value();
  return weights;
}

Tensor loss_of_tokens(DecoderModel& model) {
  const Tensor ids =
      torch::arange(kVisitingTokens).mul(7).remainder(61).view({2, -1});
  return model.forward(
      {.ids = ids, .targets = (ids + 1).remainder(61), .document_starts = {}},
      {},
      torch::arange(kVisitingTokens / 2));
}

class AdaptedExperts : public ::testing::TestWithParam<Architecture> {};

TEST_P(AdaptedExperts, HaveTheGradientsOfTheMergedModel) {
  const DecoderConfig config = model_with_experts(GetParam());
  const auto adapted =
      make_model(config, {.rank = 3, .alpha = 6, .targets = {"all-linear"}});
  const auto merged = make_model(config, {});
  torch::manual_seed(3);
  const Named parts = weights_of(*adapted);
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : parts) {
      Tensor(tensor).normal_(tensor.dim() == 1, 0.2);
      tensor.set_requires_grad(name.find("lora_") != std::string::npos);
    }
    for (const auto& [name, tensor] : weights_of(*merged)) {
      Tensor(tensor).copy_(parts.at(name));
      const std::string module = name.substr(0, name.rfind('.'));
      if (parts.contains(module + ".lora_A.weight"))
        Tensor(tensor).add_(
            torch::matmul(
                parts.at(module + ".lora_B.weight"),
                parts.at(module + ".lora_A.weight")),
            kScale);
    }
  }
  const Tensor loss = loss_of_tokens(*adapted);
  const Tensor expected = loss_of_tokens(*merged);
  EXPECT_NEAR(
      loss.item<double>(),
      expected.item<double>(),
      1e-5 * expected.item<double>());
  loss.backward();
  expected.backward();
  const Named whole = weights_of(*merged);
  int compared = 0;
  int idle = 0;
  for (const auto& [name, tensor] : parts) {
    const std::string module = adapted_module(name);
    if (module.empty())
      continue;
    const Tensor& gradient = whole.at(module + ".weight").grad();
    const Tensor& a = parts.at(module + ".lora_A.weight");
    const Tensor& b = parts.at(module + ".lora_B.weight");
    const Tensor by_rule = name.ends_with("lora_A.weight")
                               ? torch::matmul(b.t(), gradient) * kScale
                               : torch::matmul(gradient, a.t()) * kScale;
    ASSERT_TRUE(tensor.grad().defined()) << name;
    if (by_rule.abs().max().item<double>() == 0) {
      EXPECT_EQ(tensor.grad().abs().max().item<double>(), 0) << name;
      ++idle;
      continue;
    }
    EXPECT_LT(testing::relative_error(tensor.grad(), by_rule.detach()), 2e-5)
        << name;
    ++compared;
  }
  // Two layers of attention, a router and experts, of which some are idle.
  EXPECT_EQ(
      compared + idle,
      2 * 2 * (4 + 1 + 24 * 3 + (config.experts->shared_width > 0 ? 4 : 0)));
  EXPECT_GT(idle, 0);
  EXPECT_GT(compared, 2 * 2 * (4 + 1 + 2 * 3));
}

INSTANTIATE_TEST_SUITE_P(
    Architectures,
    AdaptedExperts,
    ::testing::Values(Architecture::kQwen3Moe, Architecture::kQwen2Moe),
    [](const auto& test) {
      return test.param == Architecture::kQwen2Moe ? "qwen2_moe" : "qwen3_moe";
    });

}  // namespace
}  // namespace brigade
