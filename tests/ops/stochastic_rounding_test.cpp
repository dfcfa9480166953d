#include "brigade/ops/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace brigade::ops {
namespace {

constexpr Kernels kRounders[] = {Kernels::kCpu, Kernels::kAten};

Tensor rounded_at_random(
    const Tensor& values,
    const RandomBits& bits,
    Kernels kernels = Kernels::kAuto) {
  Tensor result = torch::empty_like(values, torch::kBFloat16);
  round_stochastically(values, result, bits, kernels);
  return result;
}

TEST(StochasticRounding, HasTheValuesAsItsMean) {
  // A third of the way between two neighbours, 1 and 1 + 2^-7.
  constexpr int64_t kDraws = 1000000;
  constexpr double kStep = 1.0 / 128;
  const float value = 1.0F + static_cast<float>(kStep / 3);
  for (const float sign : {1.0F, -1.0F}) {
    const Tensor draws =
        rounded_at_random(torch::full({kDraws}, sign * value), {.key = 7})
            .to(torch::kDouble);
    const double deviation =
        kStep * std::sqrt(2.0 / 9 / static_cast<double>(kDraws));
    EXPECT_NEAR(draws.mean().item<double>(), sign * value, 4 * deviation);
    // None but the two.
    EXPECT_EQ(draws.abs().min().item<double>(), 1);
    EXPECT_EQ(draws.abs().max().item<double>(), 1 + kStep);
  }
}

TEST(StochasticRounding, LeavesWhatBf16CanHold) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const Tensor exact =
      torch::tensor({0.0F, -0.0F, 1.5F, -3e38F, kInfinity, -kInfinity})
          .to(torch::kBFloat16)
          .to(torch::kFloat);
  for (const Kernels kernels : kRounders) {
    for (uint64_t key = 0; key < 50; ++key) {
      EXPECT_TRUE(torch::equal(
          rounded_at_random(exact, {.key = key}, kernels).to(torch::kFloat),
          exact));
      // A finite value has no infinity as its neighbour.
      const Tensor largest = rounded_at_random(
          torch::full({100}, std::numeric_limits<float>::max()),
          {.key = key},
          kernels);
      EXPECT_TRUE(largest.isfinite().all().item<bool>());
      EXPECT_TRUE(rounded_at_random(
                      torch::full({3}, std::nanf("")), {.key = key}, kernels)
                      .isnan()
                      .all()
                      .item<bool>());
    }
  }
}

TEST(StochasticRounding, DependsOnAnElementsPlaceInTheWholeAlone) {
  torch::manual_seed(1);
  const Tensor whole = torch::randn({6, 40});
  for (const Kernels kernels : kRounders) {
    const Tensor expected =
        rounded_at_random(whole.view({-1}), {.key = 9}).view({6, 40});
    EXPECT_FALSE(torch::equal(
        expected,
        rounded_at_random(whole.view({-1}), {.key = 10}).view({6, 40})));
    // Columns 8 to 24, of which a rank has elements 20 to 80.
    const Tensor shard = whole.narrow(1, 8, 16).contiguous().view({-1});
    const Tensor part = rounded_at_random(
        shard.narrow(0, 20, 60),
        {.key = 9,
         .index = {.begin = 20, .run = 16, .stride = 40, .offset = 8}},
        kernels);
    EXPECT_TRUE(torch::equal(
        part,
        expected.narrow(1, 8, 16).contiguous().view({-1}).narrow(0, 20, 60)));
    EXPECT_TRUE(torch::equal(
        rounded_at_random(whole.view({-1}), {.key = 9}, kernels),
        expected.view({-1})));
  }
  // Beyond 2^32 too, and across it.
  const RandomBits far{.key = 9, .index = {.begin = int64_t{5} << 32}};
  const RandomBits across{
      .key = 9, .index = {.begin = (int64_t{1} << 32) - 100}};
  for (const RandomBits& bits : {far, across})
    EXPECT_TRUE(torch::equal(
        rounded_at_random(whole.view({-1}), bits, Kernels::kCpu),
        rounded_at_random(whole.view({-1}), bits, Kernels::kAten)));
  EXPECT_FALSE(torch::equal(
      rounded_at_random(whole.view({-1}), far),
      rounded_at_random(whole.view({-1}), {.key = 9})));
}

}  // namespace
}  // namespace brigade::ops
