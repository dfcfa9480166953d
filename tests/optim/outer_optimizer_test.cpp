#include "brigade/optim/outer_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "brigade/base/error.h"

namespace brigade {
namespace {

TEST(OuterOptimizer, StepsAsTorchsNesterovSgd) {
  for (const double momentum : {0.9, 0.5}) {
    auto weight = torch::arange(50, torch::kFloat).sin();
    auto state = torch::zeros({50});
    auto expected = weight.clone().requires_grad_();
    torch::optim::SGD oracle(
        {expected},
        torch::optim::SGDOptions(0.7).momentum(momentum).nesterov(true));
    for (int step = 0; step < 5; ++step) {
      const auto gradient =
          torch::arange(50, torch::kFloat).mul(0.3 + step).cos();
      outer_step({.lr = 0.7, .momentum = momentum}, weight, state, gradient);
      expected.mutable_grad() = gradient.clone();
      oracle.step();
      EXPECT_TRUE(torch::allclose(weight, expected, 1e-6, 1e-6)) << step;
    }
  }
}

TEST(OuterOptimizer, WithoutMomentumAtRateOneTakesTheWholeGradient) {
  auto weight = torch::full({3}, 5.0F);
  auto momentum = torch::zeros({3});
  outer_step(
      {.lr = 1, .momentum = 0}, weight, momentum, torch::full({3}, 2.0F));
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, 3.0F)));
}

TEST(OuterOptimizer, RefusesTensorsOfUnlikeLengths) {
  EXPECT_THAT(
      [&] {
        outer_step({}, torch::zeros({3}), torch::zeros({3}), torch::zeros({4}));
      },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr(
          "weight of 3, momentum of 3 and gradient of 4 elements")));
}

}  // namespace
}  // namespace brigade
