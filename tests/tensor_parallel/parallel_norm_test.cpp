#include "brigade/tensor_parallel/parallel_norm.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/leaf.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

constexpr int kRows = 3;
constexpr int kPart = 4;

// Each part of the last dim several times, as ranks with one kv head hold it.
Tensor repeated(const Tensor& whole, int times) {
  return whole.unflatten(-1, {-1, kPart})
      .repeat_interleave(times, 1)
      .flatten(1);
}

// The norm over parts of which each is held by `holders` of 4 ranks, against
// that over the whole by one rank.
void expect_as_one_rank(int holders) {
  constexpr int kRanks = 4;
  torch::manual_seed(5);
  const int64_t width = kPart * kRanks / holders;
  const Tensor whole = torch::randn({kRows, width});
  const Tensor whole_weight = torch::randn({width});
  // What each rank makes of its part is its own.
  const Tensor incoming = torch::randn({kRows, kPart * kRanks});
  const ops::RmsNormFormula formula(1e-2, 1);

  const Tensor x = testing::leaf(whole);
  const Tensor weight = testing::leaf(whole_weight);
  const Tensor normed = ops::rms_norm(x, weight, formula, {});
  (repeated(normed, holders) * incoming).sum().backward();

  testing::run_ranks(kRanks, [&](const CommunicatorPtr& group) {
    const auto begin = int64_t{kPart} * (group->rank() / holders);
    const auto part = [&](const Tensor& of) {
      return of.narrow(-1, begin, kPart);
    };
    const Tensor my_x = testing::leaf(part(whole));
    const Tensor my_weight = testing::leaf(part(whole_weight));
    const Tensor mine = parallel_rms_norm(group, my_x, my_weight, formula, {});
    EXPECT_LT(testing::relative_error(mine, part(normed)), 1e-6);
    mine.backward(incoming.narrow(-1, int64_t{kPart} * group->rank(), kPart));
    // The holders' gradients are parts of a sum.
    const Tensor gradients =
        torch::cat({my_x.grad(), my_weight.grad().unsqueeze(0)});
    Tensor gathered = torch::empty({kRanks, kRows + 1, kPart});
    group->all_gather(gathered, gradients)->wait();
    const Tensor added =
        gathered.view({kRanks / holders, holders, kRows + 1, kPart})
            .sum(1)[group->rank() / holders];
    const Tensor expected =
        torch::cat({part(x.grad()), part(weight.grad()).unsqueeze(0)});
    EXPECT_LT(testing::relative_error(added, expected), 1e-6);
  });
}

TEST(ParallelRmsNorm, EqualsOneRankOnDividedHeads) {
  expect_as_one_rank(1);
}

TEST(ParallelRmsNorm, EqualsOneRankOnHeadsThatSeveralRanksHold) {
  expect_as_one_rank(2);
}

TEST(ParallelRmsNorm, AddsTheWeightsGradientInFloat) {
  testing::run_ranks(2, [&](const CommunicatorPtr& group) {
    const Tensor x = torch::ones({kRows, kPart}, torch::kBFloat16);
    const Tensor weight = testing::leaf(torch::ones({kPart}, torch::kBFloat16));
    weight.mutable_grad() = torch::full({kPart}, 256.0F);
    const Tensor normed = parallel_rms_norm(
        group,
        x,
        weight,
        ops::RmsNormFormula(0),
        {ops::WeightGrad::kAccumulate, ops::Kernels::kAuto});
    EXPECT_EQ(normed.scalar_type(), torch::kBFloat16);
    normed.backward(torch::ones_like(normed));
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({kPart}, 259.0F)));
  });
}

}  // namespace
}  // namespace brigade
