// Against torch::nn::BatchNorm on the whole batch in one process.
#include "brigade/data_parallel/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>

#include <mutex>

#include "brigade/base/error.h"
#include "brigade/data_parallel/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;

constexpr int64_t kChannels = 5;

// Rank r has r + 1 of the rows.
torch::Tensor rows_of(const torch::Tensor& whole, int rank) {
  return whole.narrow(0, rank * (rank + 1) / 2, rank + 1);
}

void expect_near(
    const torch::Tensor& actual,
    const torch::Tensor& expected,
    const char* what) {
  EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-5) << what;
}

class SyncBatchNormTest : public ::testing::TestWithParam<int> {};

TEST_P(SyncBatchNormTest, IsThatOfTheWholeBatch) {
  const int ranks = GetParam();
  const int64_t rows = ranks * (ranks + 1) / 2;
  // A mean far from zero, where sums of squares lose digits.
  const auto whole = pseudo_random({rows, kChannels, 3, 4}, 1) * 0.5 + 300;
  const auto upstream = pseudo_random({rows, kChannels, 3, 4}, 2);
  torch::nn::BatchNorm2d expected(kChannels);
  const auto x = whole.to(torch::kDouble).requires_grad_();
  expected->to(torch::kDouble);
  {
    const torch::NoGradGuard no_grad;
    expected->weight.copy_(pseudo_random({kChannels}, 3));
    expected->bias.copy_(pseudo_random({kChannels}, 4));
  }
  const auto y = expected(x);
  y.backward(upstream.to(torch::kDouble));
  auto weight_grad = torch::zeros({kChannels}, torch::kDouble);
  std::mutex mutex;
  run_ranks(ranks, [&](const CommunicatorPtr& world) {
    const int rank = world->rank();
    SyncBatchNorm norm(kChannels, world);
    norm->to(torch::kDouble);
    {
      const torch::NoGradGuard no_grad;
      norm->weight.copy_(pseudo_random({kChannels}, 3));
      norm->bias.copy_(pseudo_random({kChannels}, 4));
    }
    const auto mine =
        rows_of(whole, rank).to(torch::kDouble).clone().requires_grad_();
    const auto out = norm(mine);
    out.backward(rows_of(upstream, rank).to(torch::kDouble));
    expect_near(out, rows_of(y, rank), "output");
    expect_near(mine.grad(), rows_of(x.grad(), rank), "gradient of the input");
    expect_near(norm->running_mean, expected->running_mean, "running mean");
    expect_near(norm->running_var, expected->running_var, "running variance");
    const std::lock_guard lock(mutex);
    weight_grad += norm->weight.grad();
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
  });
  expect_near(weight_grad, expected->weight.grad(), "gradient of the weight");
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncBatchNormTest, ::testing::Values(1, 2, 3));

// As torch::nn::BatchNorm does it: a layer of 16 bits behind it takes what it
// gives.
TEST(SyncBatchNorm, ComputesInFloat32OnHalvesAndGivesHalves) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    SyncBatchNorm norm(kChannels, world);
    torch::nn::BatchNorm2d expected(kChannels);
    const auto both =
        pseudo_random({4, kChannels, 3, 4}, 1).to(torch::kBFloat16);
    const auto x =
        both.narrow(0, 2 * world->rank(), 2).clone().requires_grad_();
    const auto y = norm(x);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.to(torch::kFloat).square().sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), torch::kBFloat16);
    const auto wide =
        expected(both.to(torch::kFloat)).narrow(0, 2 * world->rank(), 2);
    EXPECT_LT((y.to(torch::kFloat) - wide).abs().max().item<double>(), 0.01);
    struct Net : torch::nn::Module {
      explicit Net(const CommunicatorPtr& group) {
        first = register_module(
            "first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 3, 1)));
        norm = register_module("norm", SyncBatchNorm(3, group));
        second = register_module(
            "second", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 2, 1)));
      }
      torch::Tensor forward(const torch::Tensor& in) {
        return second(norm(first(in)));
      }
      torch::nn::Conv2d first{nullptr}, second{nullptr};
      SyncBatchNorm norm{nullptr};
    };
    WrapOptions wrap;
    wrap.mixed_precision = MixedPrecision{};
    DataParallel model(std::make_shared<Net>(world), world, {}, wrap);
    const auto out = model.forward(pseudo_random({2, 2, 3, 3}, 1));
    EXPECT_EQ(out.scalar_type(), torch::kBFloat16);
    out.to(torch::kFloat).square().mean().backward();
    EXPECT_EQ(model->norm->weight.grad().scalar_type(), torch::kFloat);
  });
}

TEST(SyncBatchNorm, UsesItsRunningStatisticsInEvaluation) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    SyncBatchNorm norm(kChannels, world);
    torch::nn::BatchNorm1d expected(kChannels);
    norm->eval();
    expected->eval();
    // No communication: ranks may differ in how often they evaluate.
    if (world->rank() == 1)
      return;
    const auto x = pseudo_random({4, kChannels}, 1);
    expect_near(norm(x), expected(x), "output");
  });
}

TEST(SyncBatchNorm, ConvertsASequentialAndSharesItsTensors) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    torch::nn::Sequential layers(
        torch::nn::Conv2d(torch::nn::Conv2dOptions(2, kChannels, 1)),
        torch::nn::BatchNorm2d(kChannels),
        torch::nn::ReLU());
    auto converted = convert_sync_batch_norm(layers, world);
    ASSERT_EQ(converted->size(), 3U);
    EXPECT_NE(converted->ptr(1)->as<SyncBatchNorm>(), nullptr);
    EXPECT_TRUE(
        converted->parameters()[2].is_alias_of(layers->parameters()[2]));
    const auto y =
        converted->forward(pseudo_random({2, 2, 3, 3}, world->rank()));
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, kChannels, 3, 3}));
  });
}

TEST(SyncBatchNorm, RefusesOtherShapesAndSingleValues) {
  run_ranks(1, [](const CommunicatorPtr& world) {
    SyncBatchNorm norm(kChannels, world);
    EXPECT_THROW(norm(torch::zeros({4, 3})), ConfigError);
    EXPECT_THROW(norm(torch::zeros({kChannels})), ConfigError);
    EXPECT_THROW(norm(torch::zeros({1, kChannels})), ConfigError);
  });
}

}  // namespace
}  // namespace brigade
