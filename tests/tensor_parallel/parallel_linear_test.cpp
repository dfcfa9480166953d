#include "brigade/tensor_parallel/parallel_linear.h"

#include <gtest/gtest.h>

#include "tests/support/compare.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

// The weight's gradient is handed to `defer`, which stands for its computation:
// what has been launched by then runs under it.
TEST(ColumnParallelLinear, StartsItsReductionBeforeTheWeightsGradient) {
  for (const auto tokens : {TokenLayout::kReplicated, TokenLayout::kSharded}) {
    testing::run_ranks(2, [&](const CommunicatorPtr& group) {
      const Tensor x = torch::ones(
          {tokens == TokenLayout::kSharded ? 2 : 4, 3}, torch::requires_grad());
      Tensor weight = torch::ones({5, 3}, torch::requires_grad());
      weight.mutable_grad() = torch::zeros({5, 3});
      int64_t launched_before_weight = -1;
      bool input_grad_was_there = false;
      const Tensor y = column_parallel_linear(
          {group, tokens},
          x,
          {weight},
          {},
          {.weight_grad = ops::WeightGrad::kAccumulate,
           .defer_weight_grad = [&](const std::function<void()>& compute) {
             launched_before_weight =
                 static_cast<int64_t>(group->records().size());
             input_grad_was_there = x.grad().defined();
             compute();
           }})[0];
      group->clear_records();
      y.sum().backward();
      EXPECT_EQ(launched_before_weight, 1);
      EXPECT_FALSE(input_grad_was_there);
      EXPECT_EQ(group->records().size(), 1U);
      EXPECT_TRUE(torch::equal(weight.grad(), torch::full({5, 3}, 4.0F)));
      EXPECT_TRUE(torch::equal(x.grad(), torch::full_like(x, 10.0F)));
    });
  }
}

TEST(ColumnParallelLinear, ReducesNothingForAnInputWithoutGradient) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    const Tensor weight = torch::ones({5, 3}, torch::requires_grad());
    const Tensor y =
        column_parallel_linear({group}, torch::ones({4, 3}), {weight})[0];
    group->clear_records();
    y.sum().backward();
    EXPECT_TRUE(group->records().empty());
    EXPECT_TRUE(torch::equal(weight.grad(), torch::full({5, 3}, 4.0F)));
  });
}

TEST(ColumnParallelLinear, TakesAnyLeadingDims) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    const auto y = column_parallel_linear(
        {group}, torch::ones({2, 4, 3}), {torch::ones({5, 3})});
    EXPECT_EQ(y[0].sizes(), (std::vector<int64_t>{2, 4, 5}));
  });
}

TEST(RowParallelLinear, AddsItsBiasOnce) {
  for (int size : {1, 2, 3}) {
    testing::run_ranks(size, [&](const CommunicatorPtr& group) {
      const Tensor bias = torch::full({2}, 0.5F, torch::requires_grad());
      const Tensor y = row_parallel_linear(
          {group}, torch::ones({4, 3}), torch::ones({2, 3}), bias);
      EXPECT_TRUE(torch::equal(y, torch::full({4, 2}, 3.0F * size + 0.5F)));
      y.sum().backward();
      EXPECT_TRUE(torch::equal(bias.grad(), torch::full({2}, 4.0F)));
    });
  }
}

TEST(RowParallelLinear, LaunchesOneReductionWithoutAutograd) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    const torch::NoGradGuard no_grad;
    group->clear_records();
    const Tensor y = row_parallel_linear(
        {group, TokenLayout::kSharded},
        torch::ones({4, 3}),
        torch::ones({2, 3}));
    EXPECT_TRUE(torch::equal(y, torch::full({2, 2}, 6.0F)));
    EXPECT_EQ(group->records().size(), 1U);
  });
}

}  // namespace
}  // namespace brigade
