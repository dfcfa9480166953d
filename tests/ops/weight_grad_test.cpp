#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <string>

#include "brigade/base/error.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/embedding.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "tests/support/message_of.h"

namespace brigade::ops {
namespace {

const auto kBf16 = torch::dtype(torch::kBFloat16);

Tensor weight_with_main_grad(const Tensor& values) {
  Tensor weight = values.detach().clone().requires_grad_(true);
  weight.mutable_grad() = torch::zeros(values.sizes(), torch::kFloat);
  return weight;
}

TEST(WeightGrad, MicroBatchGradientsOf256And1SumTo257) {
  Tensor weight = weight_with_main_grad(torch::ones({1, 1}, kBf16));
  for (const double value : {256.0, 1.0})
    linear(
        torch::full({1, 1}, value, kBf16), weight, {}, WeightGrad::kAccumulate)
        .sum()
        .backward();
  EXPECT_EQ(weight.grad().item<float>(), 257.0F);
}

TEST(WeightGrad, AFrozenWeightKeepsNoInput) {
  const Tensor leaf = torch::ones({4, 3}).requires_grad_(true);
  for (const bool trains : {false, true}) {
    const Tensor weight = torch::ones({2, 3}).requires_grad_(trains);
    const Tensor x = leaf * 2;
    const Tensor y = ops::linear(x, weight);
    EXPECT_EQ(x.use_count() > 1, trains);
    y.sum().backward();
    EXPECT_EQ(weight.grad().defined(), trains);
  }
  EXPECT_TRUE(torch::equal(leaf.grad(), torch::full({4, 3}, 8.0)));
}

TEST(WeightGrad, AnUndefinedMainGradIsNamedWithShapes) {
  const Tensor weight = torch::ones({3, 2}, kBf16).requires_grad_(true);
  const std::string message = message_of<Error>([&] {
    linear(torch::ones({1, 2}, kBf16), weight, {}, WeightGrad::kAccumulate)
        .sum()
        .backward();
  });
  EXPECT_NE(message.find("BFloat16 [3, 2]"), std::string::npos) << message;
  EXPECT_NE(message.find("its grad is undefined"), std::string::npos)
      << message;
}

TEST(WeightGrad, AMainGradOfTheWrongDtypeIsNamed) {
  Tensor weight = torch::ones({3, 2}, kBf16).requires_grad_(true);
  weight.mutable_grad() = torch::zeros({3, 2}, kBf16);
  const std::string message = message_of<Error>([&] {
    linear(torch::ones({1, 2}, kBf16), weight, {}, WeightGrad::kAccumulate)
        .sum()
        .backward();
  });
  EXPECT_NE(message.find("its grad is BFloat16 [3, 2]"), std::string::npos)
      << message;
}

TEST(WeightGrad, AComputedWeightCannotAccumulate) {
  const Tensor weight = torch::ones({3, 2}).requires_grad_(true) * 2;
  EXPECT_NE(
      message_of<Error>([&] {
        linear(torch::ones({1, 2}), weight, {}, WeightGrad::kAccumulate);
      }).find("needs a leaf weight"),
      std::string::npos);
}

// Every op with a weight: after two backwards main_grad holds twice what
// ordinary autograd returns, and the post hook of AccumulateGrad has fired.
class WeightGradOfOp
    : public ::testing::TestWithParam<
          std::pair<const char*, std::function<Tensor(Tensor, WeightGrad)>>> {};

TEST_P(WeightGradOfOp, AccumulatesWhatAutogradReturns) {
  torch::manual_seed(1);
  const Tensor values = torch::randn({6, 8});
  const auto& op = GetParam().second;
  const Tensor plain = values.clone().requires_grad_(true);
  op(plain, WeightGrad::kReturn).sum().backward();
  Tensor weight = weight_with_main_grad(values);
  for (int i = 0; i < 2; ++i)
    op(weight, WeightGrad::kAccumulate).sum().backward();
  EXPECT_GT(plain.grad().abs().sum().item<double>(), 0.0);
  EXPECT_TRUE(torch::allclose(weight.grad(), 2 * plain.grad(), 1e-5, 1e-6))
      << weight.grad() << plain.grad();
}

INSTANTIATE_TEST_SUITE_P(
    Ops,
    WeightGradOfOp,
    ::testing::Values(
        std::pair{"linear", std::function([](Tensor weight, WeightGrad mode) {
                    return linear(
                        torch::arange(16.0F).view({2, 8}).sin(),
                        weight,
                        {},
                        mode);
                  })},
        std::pair{
            "embedding",
            std::function([](Tensor weight, WeightGrad mode) {
              return embedding(
                         torch::tensor({1, 3, 1}, torch::kLong), weight, mode)
                  .square();
            })},
        std::pair{
            "linear_cross_entropy",
            std::function([](Tensor weight, WeightGrad mode) {
              return linear_cross_entropy(
                         torch::arange(24.0F).view({3, 8}).sin(),
                         weight,
                         torch::tensor({0, -100, 5}, torch::kLong),
                         {.weight_grad = mode}) *
                     0.5;
            })},
        std::pair{
            "linear_cross_entropy_known",
            std::function([](Tensor weight, WeightGrad mode) {
              return linear_cross_entropy(
                  torch::arange(24.0F).view({3, 8}).sin(),
                  weight,
                  torch::tensor({0, -100, 5}, torch::kLong),
                  {.weight_grad = mode, .known_gradient = 1.0});
            })}),
    [](const auto& test) { return std::string(test.param.first); });

TEST(WeightGrad, ANormsWeightAccumulates) {
  torch::manual_seed(1);
  const Tensor x = torch::randn({5, 8});
  const Tensor plain = torch::ones({8}).requires_grad_(true);
  rms_norm(x, plain, 1e-6).sum().backward();
  Tensor weight = weight_with_main_grad(torch::ones({8}));
  rms_norm(x, weight, 1e-6, WeightGrad::kAccumulate).sum().backward();
  EXPECT_TRUE(torch::allclose(weight.grad(), plain.grad()));
}

}  // namespace
}  // namespace brigade::ops
