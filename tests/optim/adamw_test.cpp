#include "brigade/optim/adamw.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

#include "brigade/base/error.h"
#include "brigade/ops/split_master.h"

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
  Tensor whole;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    Tensor weight = initial.to(dtype).clone();
    Tensor main_grad = torch::zeros({kNumel});
    AdamW optimizer({{"all", weight, main_grad, 0.1}}, {.beta2 = 0.95});
    const Tensor low = find_state(optimizer.states(0), kMasterLow);
    if (low.defined())
      ops::split_master(initial, weight, low);
    for (const Tensor& gradient : gradients) {
      main_grad.copy_(gradient * 4);
      optimizer.step(0.01, 0.25, ops::AfterRead::kZero);
      EXPECT_EQ(main_grad.abs().max().item<float>(), 0.0F);
    }
    const Tensor master =
        low.defined() ? ops::join_master(weight, low) : weight;
    EXPECT_LT(
        (master.to(torch::kDouble) - oracle).abs().max().item<double>(), 2e-6);
    EXPECT_EQ(optimizer.steps(), 5);
    // The very bits, whether in two halves or whole.
    if (!whole.defined())
      whole = master;
    EXPECT_TRUE(torch::equal(master, whole));
  }
}

TEST(AdamW, Bf16WeightsMoveByStepsTooSmallForBf16) {
  const Tensor weight = torch::ones({64}, torch::kBFloat16);
  const Tensor main_grad = torch::ones({64});
  AdamW optimizer({{"all", weight, main_grad, 0.0}}, {});
  // 64 steps of 1e-4; bf16 near 1 resolves 4e-3.
  for (int i = 0; i < 64; ++i)
    optimizer.step(1e-4, 1.0, ops::AfterRead::kKeep);
  EXPECT_NEAR(weight[0].item<float>(), 1.0F - 64e-4F, 2e-3F);
  EXPECT_NEAR(
      ops::join_master(weight, find_state(optimizer.states(0), kMasterLow))[0]
          .item<float>(),
      1.0F - 64e-4F,
      1e-5F);
  optimizer.reload_masters();
  EXPECT_TRUE(torch::equal(
      ops::join_master(weight, find_state(optimizer.states(0), kMasterLow)),
      weight.to(torch::kFloat)));
}

TEST(AdamW, AFloatWeightIsItsOwnMaster) {
  const Tensor weight = torch::ones({8});
  const AdamW optimizer({{"all", weight, torch::zeros({8}), 0.0}}, {});
  EXPECT_FALSE(find_state(optimizer.states(0), kMasterLow).defined());
}

TEST(AdamW, ABf16WeightNeedsTheRestOfItsMaster) {
  const Tensor flat = torch::zeros({8});
  const auto step = [&](const Tensor& weight, const Tensor& low) {
    ops::adamw_step({}, {flat, flat.clone(), flat.clone(), weight, low});
  };
  const Tensor low = torch::zeros({8}, torch::kShort);
  EXPECT_THROW(step(flat.to(torch::kBFloat16), {}), Error);
  EXPECT_THROW(step(flat.clone(), low), Error);
  step(flat.to(torch::kBFloat16), low);
  step(flat.clone(), {});
}

TEST(AdamW, BothKernelSetsAgree) {
  torch::manual_seed(3);
  constexpr int64_t kNumel = 1'003;
  const Tensor initial = torch::randn({kNumel});
  const Tensor gradient = torch::randn({kNumel});
  const auto stepped = [&](auto step) {
    const Tensor weight = torch::empty({kNumel}, torch::kBFloat16);
    const Tensor low = torch::empty({kNumel}, torch::kShort);
    ops::split_master(initial, weight, low);
    Tensor main_grad = gradient.clone();
    step(
        main_grad, torch::zeros({kNumel}), torch::zeros({kNumel}), weight, low);
    EXPECT_TRUE(torch::equal(main_grad, torch::zeros({kNumel})));
    return ops::join_master(weight, low);
  };
  const auto by = [&](ops::Kernels kernels) {
    return stepped([&](const auto&... tensors) {
      ops::adamw_step(
          {.grad_scale = 0.5, .kernels = kernels},
          {tensors...},
          ops::AfterRead::kZero);
    });
  };
  const Tensor cpu = by(ops::Kernels::kCpu);
  EXPECT_TRUE(torch::allclose(cpu, by(ops::Kernels::kAten), 1e-6, 1e-7));
  EXPECT_FALSE(torch::allclose(cpu, initial, 1e-6, 1e-7));
}

// Floats of every kind, by their bits.
Tensor floats_of_all_kinds() {
  torch::manual_seed(4);
  const Tensor any = torch::randint(
      std::numeric_limits<int32_t>::min(),
      std::numeric_limits<int32_t>::max(),
      {200'000},
      torch::kLong);
  // Between two bf16, next to it, and on one; infinities and zeros among them.
  const Tensor halves = torch::arange(1 << 16, torch::kLong) * (1 << 16);
  return torch::cat({any,
                     halves,
                     halves + 1,
                     halves + 0x7fff,
                     halves + 0x8000,
                     halves + 0x8001})
      .to(torch::kInt)
      .view(torch::kFloat);
}

TEST(SplitMaster, ComesBackToTheLastBitFromTheNearestWeight) {
  const Tensor master = floats_of_all_kinds();
  const Tensor weight = torch::empty_like(master, torch::kBFloat16);
  const Tensor low = torch::empty_like(master, torch::kShort);
  ops::split_master(master, weight, low);
  const Tensor joined = ops::join_master(weight, low);
  const Tensor is_nan = master.isnan();
  EXPECT_TRUE(torch::equal(joined.isnan(), is_nan));
  EXPECT_TRUE(torch::equal(weight.isnan(), is_nan));
  const auto bits_of_numbers = [&](const Tensor& x) {
    return x.view(torch::kInt).masked_select(is_nan.logical_not());
  };
  EXPECT_TRUE(torch::equal(bits_of_numbers(joined), bits_of_numbers(master)));
  // As far from the master as torch's own rounding, which ends elsewhere only
  // where two are as near.
  const Tensor finite = weight.to(torch::kFloat).isfinite();
  const auto distance = [&](const Tensor& rounded) {
    return (rounded.to(torch::kDouble) - master.to(torch::kDouble))
        .abs()
        .masked_select(finite);
  };
  EXPECT_TRUE(
      torch::equal(distance(weight), distance(master.to(torch::kBFloat16))));

  const Tensor twins_weight = torch::empty_like(weight);
  const Tensor twins_low = torch::empty_like(low);
  ops::split_master(master, twins_weight, twins_low, ops::Kernels::kAten);
  EXPECT_TRUE(torch::equal(
      twins_weight.view(torch::kShort), weight.view(torch::kShort)));
  EXPECT_TRUE(torch::equal(twins_low, low));
  EXPECT_TRUE(torch::equal(
      ops::join_master(weight, low, ops::Kernels::kAten).view(torch::kInt),
      joined.view(torch::kInt)));
}

TEST(SplitMaster, RefusesWhatDoesNotFit) {
  EXPECT_THROW(
      ops::split_master(
          torch::ones({4}),
          torch::ones({4}, torch::kBFloat16),
          torch::ones({4}, torch::kInt)),
      Error);
}

TEST(AdamW, AMismatchedGroupIsNamed) {
  EXPECT_THAT(
      [&] {
        AdamW({{"bucket 3", torch::ones({8}), torch::zeros({7}), 0.0}}, {});
      },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("'bucket 3'")));
}

TEST(SumOfSquares, IsTheSameForAnyNumberOfThreads) {
  torch::manual_seed(1);
  const Tensor values = torch::randn({1'000'003});
  const double oracle = values.to(torch::kDouble).square().sum().item<double>();
  const int threads = at::get_num_threads();
  std::vector<double> sums;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    sums.push_back(ops::sum_of_squares(values).item<double>());
  }
  at::set_num_threads(threads);
  EXPECT_NEAR(sums[0] / oracle, 1.0, 1e-12);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

TEST(SumOfSquares, IsNotFiniteExactlyWhenAnElementIsNot) {
  Tensor values = torch::full({1000}, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(ops::sum_of_squares(values).item<double>()));
  values[777] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(std::isfinite(ops::sum_of_squares(values).item<double>()));
  values[777] = -std::numeric_limits<float>::infinity();
  EXPECT_FALSE(std::isfinite(ops::sum_of_squares(values).item<double>()));
  EXPECT_EQ(ops::sum_of_squares(torch::empty({0})).item<double>(), 0.0);
}

}  // namespace
}  // namespace brigade
