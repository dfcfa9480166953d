#include "brigade/model/router.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <memory>

namespace brigade {
namespace {

using torch::Tensor;

constexpr int64_t kExperts = 5;
constexpr int64_t kPerToken = 2;
constexpr int64_t kHidden = 6;
constexpr int64_t kSequences = 2;
constexpr int64_t kRoutedTokens = 14;

DecoderConfig small_config() {
  DecoderConfig config;
  config.architecture = Architecture::kQwen3Moe;
  config.vocab_size = 11;
  config.hidden_size = kHidden;
  config.intermediate_size = 8;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 1;
  config.num_key_value_heads = 1;
  config.head_dim = 6;
  config.experts = ExpertsConfig{
      .num_experts = kExperts, .num_experts_per_tok = kPerToken, .width = 4};
  return config;
}

// A router with random weights, in float64.
struct SmallRouter {
  explicit SmallRouter(const RouterLosses& losses) {
    ModelContext context = single_rank_context(small_config());
    context.dtype = torch::kDouble;
    context.router_losses = losses;
    const auto shared = std::make_shared<const ModelContext>(context);
    const ParameterSource source = ParameterSource(*shared)
                                       .inside("model")
                                       .inside("layers")
                                       .inside("0")
                                       .inside("mlp");
    router = std::make_unique<Router>(
        module, shared, *context.description.layers[0].experts, source);
    const torch::NoGradGuard no_grad;
    weight().normal_();
  }
  Tensor weight() const { return module.named_parameters()["gate.weight"]; }

  struct Parent : torch::nn::Module {};
  Parent module;
  std::unique_ptr<Router> router;
};

// The losses alone, token by token, with counts as constants.
Tensor expected_losses(
    const Tensor& x,
    const Tensor& weight,
    const Tensor& has_loss,
    const RouterLosses& losses) {
  Tensor total = torch::zeros({}, torch::kDouble);
  const int64_t tokens = kRoutedTokens / kSequences;
  for (int64_t sequence = 0; sequence < kSequences; ++sequence) {
    std::vector<double> counts(kExperts);
    double learned = 0;
    for (const bool counts_first : {true, false}) {
      for (int64_t t = sequence * tokens; t < (sequence + 1) * tokens; ++t) {
        if (!has_loss[t].item<bool>())
          continue;
        const Tensor logits = torch::mv(weight, x[t]);
        const Tensor scores = torch::softmax(logits, 0);
        if (counts_first) {
          learned += 1;
          const auto best = std::get<1>(scores.detach().topk(kPerToken));
          for (int64_t i = 0; i < kPerToken; ++i)
            counts[static_cast<size_t>(best[i].item<int64_t>())] += 1;
          continue;
        }
        for (int64_t e = 0; e < kExperts; ++e)
          total = total + losses.balance * kExperts *
                              counts[static_cast<size_t>(e)] /
                              (kPerToken * learned) * scores[e];
        total = total + losses.z * torch::logsumexp(logits, 0).square();
      }
    }
  }
  return total;
}

TEST(Router, AddsTheGradientsOfItsLossesOverTheTokensThatCount) {
  torch::manual_seed(5);
  const RouterLosses losses{.balance = 0.3, .z = 0.02};
  const SmallRouter small(losses);
  const Tensor x = torch::randn({kRoutedTokens, kHidden}, torch::kDouble);
  Tensor has_loss = torch::ones({kRoutedTokens}, torch::kBool);
  has_loss.slice(0, 3, 6).fill_(false);

  KeptRouting kept;
  const Tensor weights = small.router->route(
      x, {.has_loss = has_loss, .sequences = kSequences}, kept);
  // The weights themselves have no gradient: what is left is of the losses.
  (weights * 0).sum().backward();
  const Tensor actual = small.weight().grad().clone();

  small.weight().mutable_grad().reset();
  expected_losses(x, small.weight(), has_loss, losses).backward();
  EXPECT_TRUE(torch::allclose(actual, small.weight().grad(), 1e-9, 1e-12));
  EXPECT_GT(actual.abs().max().item<double>(), 1e-3);
}

// E * sum over e of f_e * sum over tokens of p_te, with f that is given.
TEST(Router, AddsTheBalanceLossOverTheSharesItIsGiven) {
  torch::manual_seed(5);
  const SmallRouter small({.balance = 0.3});
  const Tensor x = torch::randn({kRoutedTokens, kHidden}, torch::kDouble);
  Tensor has_loss = torch::ones({kRoutedTokens}, torch::kBool);
  has_loss.slice(0, 3, 6).fill_(false);
  const Tensor shares =
      torch::tensor({0.5, 0.0, 0.25, 0.125, 0.125}, torch::kDouble);

  KeptRouting kept{.load = shares.expand({kSequences, kExperts})};
  const Tensor weights = small.router->route(
      x, {.has_loss = has_loss, .sequences = kSequences}, kept);
  (weights * 0).sum().backward();
  const Tensor actual = small.weight().grad().clone();

  small.weight().mutable_grad().reset();
  const Tensor scores = torch::softmax(torch::mm(x, small.weight().t()), 1);
  const Tensor learned = scores.index({has_loss});
  (0.3 * kExperts * torch::mv(learned, shares).sum()).backward();
  EXPECT_TRUE(torch::allclose(actual, small.weight().grad(), 1e-9, 1e-12));
  EXPECT_GT(actual.abs().max().item<double>(), 1e-3);
}

TEST(Router, WithoutTokensThatCountThereIsNoLoss) {
  torch::manual_seed(5);
  const SmallRouter small({.balance = 0.3, .z = 0.02});
  KeptRouting kept;
  const Tensor weights = small.router->route(
      torch::randn({kRoutedTokens, kHidden}, torch::kDouble),
      {.has_loss = torch::zeros({kRoutedTokens}, torch::kBool),
       .sequences = kSequences},
      kept);
  (weights * 0).sum().backward();
  EXPECT_EQ(small.weight().grad().abs().max().item<double>(), 0);
}

TEST(Router, ASecondRunVisitsTheExpertsOfTheFirst) {
  torch::manual_seed(5);
  const SmallRouter small({});
  const Tensor x = torch::randn({kRoutedTokens, kHidden}, torch::kDouble);
  KeptRouting kept;
  small.router->route(x, {}, kept);
  const Tensor chosen = kept.experts.clone();
  small.router->route(-x, {}, kept);
  EXPECT_TRUE(torch::equal(kept.experts, chosen));
}

}  // namespace
}  // namespace brigade
