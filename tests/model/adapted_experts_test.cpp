// Adapters of routers and experts, against the model whose weights have them
// merged: by the chain rule, of W + s B A the gradients of A and B are
// s B^T dW and s dW A^T.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

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

struct AdaptedCase {
  std::string name;
  Architecture architecture;
  std::vector<std::string> targets;
  int tensors;  // of adapters
};

void PrintTo(const AdaptedCase& each, std::ostream* out) {
  *out << each.name;
}

class AdaptedExperts : public ::testing::TestWithParam<AdaptedCase> {};

TEST_P(AdaptedExperts, HaveTheGradientsOfTheMergedModel) {
  const DecoderConfig config = model_with_experts(GetParam().architecture);
  const auto adapted = make_model(
      config, {.rank = 3, .alpha = 6, .targets = GetParam().targets});
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
    const Tensor& weight = whole.at(module + ".weight");
    const Tensor gradient =
        weight.grad().defined() ? weight.grad() : torch::zeros_like(weight);
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
  EXPECT_EQ(compared + idle, GetParam().tensors);
  EXPECT_GT(idle, 0);
  EXPECT_GT(compared, GetParam().tensors / 12);
}

// All experts but the first: a target may name some of them.
std::vector<std::string> all_but_the_first() {
  std::vector<std::string> targets;
  for (int expert = 1; expert < 24; ++expert)
    targets.push_back("experts." + std::to_string(expert) + ".up_proj");
  return targets;
}

// Counts A and B in two layers: attention, router, experts, the shared expert
// and its gate.
INSTANTIATE_TEST_SUITE_P(
    Models,
    AdaptedExperts,
    ::testing::Values(
        AdaptedCase{
            "qwen3_moe",
            Architecture::kQwen3Moe,
            {"all-linear"},
            2 * 2 * (4 + 1 + 24 * 3)},
        AdaptedCase{
            "qwen2_moe",
            Architecture::kQwen2Moe,
            {"all-linear"},
            2 * 2 * (4 + 1 + 24 * 3 + 3 + 1)},
        AdaptedCase{
            "some_experts",
            Architecture::kQwen3Moe,
            all_but_the_first(),
            2 * 2 * 23}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace brigade
