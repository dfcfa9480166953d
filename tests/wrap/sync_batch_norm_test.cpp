// Against torch::nn::BatchNorm on the whole batch in one process.
#include "brigade/wrap/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;
using torch::nn::AnyModule;

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

class SyncBatchNormInEvaluation : public ::testing::TestWithParam<bool> {};

TEST_P(SyncBatchNormInEvaluation, IsABatchNormOfItsOwnRank) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto options =
        torch::nn::BatchNormOptions(kChannels).track_running_stats(GetParam());
    SyncBatchNorm norm(kChannels, world, options);
    torch::nn::BatchNorm1d expected(options);
    norm->eval();
    expected->eval();
    // No communication: ranks may differ in how often they evaluate.
    if (world->rank() == 1)
      return;
    const auto x = pseudo_random({4, kChannels}, 1);
    expect_near(norm(x), expected(x), "output");
  });
}

INSTANTIATE_TEST_SUITE_P(
    TracksStatistics,
    SyncBatchNormInEvaluation,
    ::testing::Bool());

// ---- gradients of gradients

// The first three derivatives of a scalar by x, by means of their squares; the
// last in the .grad of x and of the parameters.
std::vector<torch::Tensor> derivatives(
    const torch::Tensor& x,
    const std::function<torch::Tensor(const torch::Tensor& x)>& f) {
  std::vector<torch::Tensor> result;
  torch::Tensor value = f(x);
  for (int order = 1; order <= 2; ++order) {
    const auto gradient = torch::autograd::grad(
        {value}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    result.push_back(gradient.detach());
    value = gradient.pow(2).sum();
  }
  value.backward();
  result.push_back(x.grad());
  return result;
}

TEST_P(SyncBatchNormTest, GradientsOfGradientsAreThoseOfTheWholeBatch) {
  const int ranks = GetParam();
  const int64_t rows = ranks * (ranks + 1) / 2;
  const auto whole = pseudo_random({rows, kChannels, 3}, 1).to(torch::kDouble);
  const auto upstream =
      pseudo_random({rows, kChannels, 3}, 2).to(torch::kDouble);
  const auto scale = pseudo_random({kChannels}, 3).to(torch::kDouble) + 2;
  // Operations that can be differentiated any number of times; torch's
  // batch_norm can twice.
  const auto weight = scale.clone().requires_grad_();
  const auto x = whole.clone().requires_grad_();
  const std::vector<int64_t> of_channel{0, 2};
  const auto all = derivatives(x, [&](const torch::Tensor& values) {
    const auto centred = values - values.mean(of_channel, /*keepdim=*/true);
    const auto variance = centred.square().mean(of_channel, /*keepdim=*/true);
    const auto normed = centred * (variance + 1e-5).rsqrt();
    return (torch::tanh(normed * weight.view({1, kChannels, 1})) * upstream)
        .sum();
  });
  auto weight_grad = torch::zeros({kChannels}, torch::kDouble);
  std::mutex mutex;
  run_ranks(ranks, [&](const CommunicatorPtr& world) {
    const int rank = world->rank();
    SyncBatchNorm norm(kChannels, world);
    norm->to(torch::kDouble);
    {
      const torch::NoGradGuard no_grad;
      norm->weight.copy_(scale);
    }
    const auto mine = rows_of(whole, rank).clone().requires_grad_();
    const auto own = derivatives(mine, [&](const torch::Tensor& values) {
      return (torch::tanh(norm(values)) * rows_of(upstream, rank)).sum();
    });
    for (size_t order = 0; order < all.size(); ++order) {
      const auto largest = all[order].abs().max().item<double>();
      EXPECT_LT(
          (own[order] - rows_of(all[order], rank)).abs().max().item<double>(),
          1e-8 * largest)
          << "derivative " << order + 1;
    }
    const std::lock_guard lock(mutex);
    weight_grad += norm->weight.grad();
  });
  EXPECT_TRUE(torch::allclose(weight_grad, weight.grad(), 1e-8));
}

// ---- conversion

TEST(SyncBatchNorm, ConvertsASequentialAndKeepsItsTensorsAndNames) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    torch::nn::Sequential layers(torch::OrderedDict<std::string, AnyModule>{
        {"conv",
         AnyModule(
             torch::nn::Conv2d(torch::nn::Conv2dOptions(2, kChannels, 1)))},
        {"norm", AnyModule(torch::nn::BatchNorm2d(kChannels))},
        {"relu", AnyModule(torch::nn::ReLU())}});
    const auto params = layers->named_parameters();
    const auto buffers = layers->named_buffers();
    auto converted = convert_sync_batch_norm(layers, world);
    ASSERT_EQ(converted->size(), 3U);
    EXPECT_NE(converted->ptr(1)->as<SyncBatchNorm>(), nullptr);
    EXPECT_EQ(converted->named_parameters().keys(), params.keys());
    EXPECT_EQ(converted->named_buffers().keys(), buffers.keys());
    // An optimizer that was made before steps the same parameters.
    for (const auto& param : params)
      EXPECT_TRUE(
          converted->named_parameters()[param.key()].is_same(param.value()));
    for (const auto& buffer : buffers)
      EXPECT_TRUE(
          converted->named_buffers()[buffer.key()].is_same(buffer.value()));
    const auto y =
        converted->forward(pseudo_random({2, 2, 3, 3}, world->rank()));
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{2, kChannels, 3, 3}));
  });
}

TEST(SyncBatchNorm, ConversionKeepsFrozenLayersAndTheModeOfEach) {
  const auto world = testing::make_world_of_one();
  torch::nn::Sequential layers(
      torch::nn::BatchNorm1d(kChannels),
      torch::nn::BatchNorm1d(
          torch::nn::BatchNormOptions(kChannels).momentum(0.5)),
      torch::nn::BatchNorm1d(
          torch::nn::BatchNormOptions(kChannels).affine(false)));
  layers->ptr(0)->eval();
  for (auto& param : layers->ptr(0)->parameters())
    param.set_requires_grad(false);
  torch::nn::Sequential plain(
      std::dynamic_pointer_cast<torch::nn::SequentialImpl>(layers->clone()));
  convert_sync_batch_norm(layers, world);
  ASSERT_NE(layers->ptr(0)->as<SyncBatchNorm>(), nullptr);
  EXPECT_FALSE(layers->ptr(0)->is_training());
  EXPECT_TRUE(layers->ptr(1)->is_training());
  EXPECT_FALSE(layers->ptr(0)->parameters()[0].requires_grad());
  EXPECT_TRUE(layers->ptr(1)->parameters()[0].requires_grad());
  const auto x = pseudo_random({4, kChannels}, 1) + 3;
  expect_near(layers->forward(x), plain->forward(x), "output");
  for (const auto& buffer : plain->named_buffers())
    expect_near(
        layers->named_buffers()[buffer.key()].to(torch::kDouble),
        buffer.value().to(torch::kDouble),
        buffer.key().c_str());
}

struct BlockOfLayers : torch::nn::Module {
  explicit BlockOfLayers(const torch::nn::Sequential& inner)
      : layers(register_module("layers", inner)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x + layers->forward(x);
  }
  torch::nn::Sequential layers;
};

struct BlockWithNorm : torch::nn::Module {
  BlockWithNorm() : norm(register_module("norm", torch::nn::BatchNorm1d(3))) {}
  torch::Tensor forward(const torch::Tensor& x) { return norm(x); }
  torch::nn::BatchNorm1d norm;
};

// A checkpoint of one is a checkpoint of the other.
TEST(SyncBatchNorm, IsClonedWithItsTensorsModeAndRanks) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    torch::nn::Sequential net(
        torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    convert_sync_batch_norm(net, world);
    auto& norm = *net[1]->as<SyncBatchNorm>();
    norm.bias.set_requires_grad(false);
    const auto x = torch::randn({3, 2}) + world->rank();
    net->forward(x);
    net->eval();
    const auto copy =
        std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    auto& other = *copy->ptr(1)->as<SyncBatchNorm>();
    EXPECT_FALSE(other.is_training());
    EXPECT_FALSE(other.bias.requires_grad());
    EXPECT_TRUE(other.weight.requires_grad());
    EXPECT_TRUE(torch::equal(other.running_mean, norm.running_mean));
    EXPECT_TRUE(torch::equal(other.running_var, norm.running_var));
    EXPECT_FALSE(other.weight.is_alias_of(norm.weight));
    net->train();
    copy->train();
    EXPECT_TRUE(torch::equal(copy->forward(x), net->forward(x)));
  });
}

TEST(SyncBatchNorm, ConvertsInnerSequentialsInPlace) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto make = [] {
      // One of them is in two places.
      const torch::nn::BatchNorm1d shared(kChannels);
      const torch::nn::Sequential inner(
          torch::nn::Linear(kChannels, kChannels), shared, shared);
      return torch::nn::Sequential(
          torch::nn::BatchNorm1d(kChannels),
          std::make_shared<BlockOfLayers>(inner));
    };
    auto plain = make();
    auto converted = convert_sync_batch_norm(make(), world);
    // The same on every rank.
    fill_params(*plain);
    std::stringstream file;
    {
      torch::serialize::OutputArchive archive;
      plain->save(archive);
      archive.save_to(file);
      torch::serialize::InputArchive back;
      back.load_from(file);
      converted->load(back);
    }
    const auto inner = converted->ptr(1)->as<BlockOfLayers>()->layers;
    EXPECT_NE(inner->ptr(1)->as<SyncBatchNorm>(), nullptr);
    EXPECT_EQ(inner->ptr(1), inner->ptr(2));
    const auto whole = pseudo_random({6, kChannels}, 1);
    expect_near(
        converted->forward(whole.narrow(0, 3 * world->rank(), 3)),
        plain->forward(whole).narrow(0, 3 * world->rank(), 3),
        "output");
  });
}

TEST(SyncBatchNorm, ConversionNamesWhatItCannotReplaceAndChangesNothing) {
  const auto world = testing::make_world_of_one();
  torch::nn::Sequential layers(
      torch::nn::BatchNorm1d(3), std::make_shared<BlockWithNorm>());
  EXPECT_THAT(
      [&] { convert_sync_batch_norm(layers, world); },
      ThrowsMessage<UsageError>(HasSubstr("cannot convert '1.norm': only a")));
  EXPECT_NE(layers->ptr(0)->as<torch::nn::BatchNorm1d>(), nullptr);
  EXPECT_THROW(
      convert_sync_batch_norm(torch::nn::BatchNorm1d(3), world), UsageError);
}

TEST(SyncBatchNorm, RefusesOtherShapesAndSingleValues) {
  run_ranks(1, [](const CommunicatorPtr& world) {
    SyncBatchNorm norm(kChannels, world);
    EXPECT_THROW(norm(torch::zeros({4, 3})), UsageError);
    EXPECT_THROW(norm(torch::zeros({kChannels})), UsageError);
    EXPECT_THROW(norm(torch::zeros({1, kChannels})), UsageError);
  });
}

}  // namespace
}  // namespace brigade
