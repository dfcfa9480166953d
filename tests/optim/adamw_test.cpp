#include "brigade/optim/adamw.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cmath>
#include <limits>
#include <string>

#include "brigade/base/error.h"

namespace brigade {
namespace {

using torch::Tensor;

// torch.optim.AdamW itself, in float64.
Tensor torchs_weights(
    const Tensor& initial,
    const std::vector<Tensor>& gradients,
    double weight_decay) {
  Tensor weight = initial.to(torch::kDouble).clone().requires_grad_(true);
  torch::optim::AdamW optimizer(
      {weight},
      torch::optim::AdamWOptions(0.01)
          .betas({0.9, 0.95})
          .eps(1e-8)
          .weight_decay(weight_decay));
  for (const Tensor& gradient : gradients) {
    weight.mutable_grad() = gradient.to(torch::kDouble);
    optimizer.step();
  }
  return weight.detach();
}

TEST(AdamW, StepsAsTorchsDoes) {
  torch::manual_seed(2);
  constexpr int64_t kNumel = 70'001;  // more than one task, an odd rest
  const Tensor initial = torch::randn({kNumel});
  std::vector<Tensor> gradients;
  for (int i = 0; i < 5; ++i)
    gradients.push_back(torch::randn({kNumel}));
  const Tensor oracle = torchs_weights(initial, gradients, 0.1);
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    Tensor weight = initial.to(dtype).clone();
    Tensor main_grad = torch::zeros({kNumel});
    AdamW optimizer({{"all", weight, main_grad, 0.1}}, {.beta2 = 0.95});
    optimizer.states()[0].master.copy_(initial);
    for (const Tensor& gradient : gradients) {
      main_grad.copy_(gradient * 4);
      optimizer.step(0.01, 0.25, ops::AfterRead::kZero);
      EXPECT_EQ(main_grad.abs().max().item<float>(), 0.0F);
    }
    const Tensor& master = optimizer.states()[0].master;
    EXPECT_LT(
        (master.to(torch::kDouble) - oracle).abs().max().item<double>(), 2e-6);
    EXPECT_TRUE(torch::equal(weight, master.to(dtype)));
    EXPECT_EQ(optimizer.steps(), 5);
  }
}

TEST(AdamW, Bf16WeightsMoveByStepsTooSmallForBf16) {
  const Tensor weight = torch::ones({64}, torch::kBFloat16);
  const Tensor main_grad = torch::ones({64});
  AdamW optimizer({{"all", weight, main_grad, 0.0}}, {});
  // 64 steps of 1e-4; bf16 near 1 resolves 4e-3.
  for (int i = 0; i < 64; ++i)
    optimizer.step(1e-4);
  EXPECT_NEAR(weight[0].item<float>(), 1.0F - 64e-4F, 2e-3F);
  EXPECT_NEAR(
      optimizer.states()[0].master[0].item<float>(), 1.0F - 64e-4F, 1e-5F);
}

TEST(AdamW, AFloatWeightIsItsOwnMaster) {
  const Tensor weight = torch::ones({8});
  const AdamW optimizer({{"all", weight, torch::zeros({8}), 0.0}}, {});
  EXPECT_EQ(optimizer.states()[0].master.data_ptr(), weight.data_ptr());
}

TEST(AdamW, AMismatchedGroupIsNamed) {
  try {
    AdamW({{"bucket 3", torch::ones({8}), torch::zeros({7}), 0.0}}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'bucket 3'"), std::string::npos);
  }
}

TEST(SumOfSquares, IsTheSameForAnyNumberOfThreads) {
  torch::manual_seed(1);
  const Tensor values = torch::randn({1'000'003});
  const double oracle = values.to(torch::kDouble).square().sum().item<double>();
  const int threads = at::get_num_threads();
  std::vector<double> sums;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    sums.push_back(ops::sum_of_squares(values));
  }
  at::set_num_threads(threads);
  EXPECT_NEAR(sums[0] / oracle, 1.0, 1e-12);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

TEST(SumOfSquares, IsNotFiniteExactlyWhenAnElementIsNot) {
  Tensor values = torch::full({1000}, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(ops::sum_of_squares(values)));
  values[777] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(std::isfinite(ops::sum_of_squares(values)));
  values[777] = -std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(ops::sum_of_squares(values)));
  EXPECT_EQ(ops::sum_of_squares(torch::empty({0})), 0.0);
}

}  // namespace
}  // namespace brigade
