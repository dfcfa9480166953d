#include "brigade/wrap/lora.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/wrap/data_parallel.h"
#include "tests/data_parallel/pseudo_random.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::UnorderedElementsAre;
using torch::Tensor;

struct Net : torch::nn::Module {
  Net()
      : fc1(register_module("fc1", torch::nn::Linear(6, 10))),
        fc2(register_module("fc2", torch::nn::Linear(10, 3))) {}
  Tensor forward(const Tensor& x) { return fc2(torch::tanh(fc1(x))); }
  torch::nn::Linear fc1, fc2;
};

const AdapterOptions kFirst{.rank = 2, .alpha = 6, .targets = {"fc1"}};

std::set<std::string> trained_of(torch::nn::Module& module) {
  std::set<std::string> names;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad())
      names.insert(item.key());
  }
  return names;
}

TEST(Lora, FreezesTheModuleAndNamesItsOwnAsPeft) {
  Net net;
  const Lora lora = add_lora(net, kFirst);
  EXPECT_THAT(
      trained_of(net),
      UnorderedElementsAre("fc1.lora_A.weight", "fc1.lora_B.weight"));
  EXPECT_EQ(net.named_parameters().size(), 6U);
  EXPECT_EQ(lora.parameters().size(), 2U);
}

TEST(Lora, BeginsWithTheModulesOwnFunction) {
  Net net;
  const Tensor x = torch::randn({4, 6});
  const Tensor before = net.forward(x).detach();
  const Lora lora = add_lora(net, kFirst);
  EXPECT_TRUE(torch::equal(net.forward(x), before));
  const Tensor a = lora.parameters()[0];
  EXPECT_GT(a.abs().max().item<float>(), 0);
  EXPECT_LE(a.abs().max().item<double>(), 1 / std::sqrt(6.0));
}

// Against W x + 3 B (A x), differentiated by torch.
TEST(Lora, HasTheGradientsOfTheFormula) {
  torch::manual_seed(1);
  Net net;
  const Lora lora = add_lora(net, kFirst);
  const Tensor a = lora.parameters()[0];
  const Tensor b = lora.parameters()[1];
  {
    const torch::NoGradGuard no_grad;
    b.normal_();
  }
  const Tensor x = torch::randn({4, 6});
  lora.apply();
  const Tensor y = net.forward(x);
  y.square().sum().backward();

  const Tensor own_a = a.detach().clone().requires_grad_();
  const Tensor own_b = b.detach().clone().requires_grad_();
  const auto named = net.named_parameters();
  const Tensor hidden =
      torch::linear(x, named["fc1.weight"], named["fc1.bias"]) +
      3 * torch::linear(torch::linear(x, own_a), own_b);
  const Tensor expected = torch::linear(
      torch::tanh(hidden), named["fc2.weight"], named["fc2.bias"]);
  expected.square().sum().backward();
  EXPECT_TRUE(torch::allclose(y, expected, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(a.grad(), own_a.grad(), 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(b.grad(), own_b.grad(), 1e-4, 1e-5));
  EXPECT_FALSE(named["fc1.weight"].grad().defined());
}

TEST(Lora, TrainsOverSeveralSteps) {
  torch::manual_seed(2);
  Net net;
  const Lora lora = add_lora(net, {.rank = 4, .targets = {"all-linear"}});
  torch::optim::AdamW optimizer(
      lora.parameters(), torch::optim::AdamWOptions(1e-2));
  const Tensor x = torch::randn({16, 6});
  const Tensor target = torch::randn({16, 3});
  double first = 0;
  double last = 0;
  for (int step = 0; step < 30; ++step) {
    lora.apply();
    const Tensor loss = (net.forward(x) - target).square().mean();
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    first = step == 0 ? last : first;
  }
  EXPECT_LT(last, 0.8 * first);
}

TEST(Lora, MergedIsTheSameFunctionInTheWeightItself) {
  Net net;
  Lora lora = add_lora(net, kFirst);
  {
    const torch::NoGradGuard no_grad;
    lora.parameters()[1].normal_();
  }
  const Tensor x = torch::randn({4, 6});
  lora.apply();
  const Tensor before = net.forward(x).detach();
  lora.merge();
  EXPECT_TRUE(torch::allclose(net.forward(x), before, 1e-5, 1e-6));
  EXPECT_TRUE(
      torch::equal(net.named_parameters()["fc1.weight"], net.fc1->weight));
}

// m (W + 3 B A) / |W + 3 B A| by rows, the norms without a gradient.
TEST(Lora, MagnitudesAreTheNormsOfTheRows) {
  torch::manual_seed(3);
  Net net;
  AdapterOptions options = kFirst;
  options.use_dora = true;
  const Tensor x = torch::randn({4, 6});
  const Tensor plain = net.forward(x).detach();
  Lora lora = add_lora(net, options);
  EXPECT_THAT(
      trained_of(net),
      UnorderedElementsAre(
          "fc1.lora_A.weight",
          "fc1.lora_B.weight",
          "fc1.lora_magnitude_vector"));
  EXPECT_TRUE(torch::allclose(net.forward(x), plain, 1e-5, 1e-6));
  const auto parameters = lora.parameters();
  ASSERT_EQ(parameters.size(), 3U);
  {
    const torch::NoGradGuard no_grad;
    parameters[1].normal_();
    parameters[2].uniform_(0.5, 1.5);
  }
  lora.apply();
  const Tensor y = net.forward(x);
  y.square().sum().backward();

  std::vector<Tensor> own;
  for (const Tensor& each : parameters)
    own.push_back(each.detach().clone().requires_grad_());
  const auto named = net.named_parameters();
  const Tensor sum = named["fc1.weight"] + 3 * torch::matmul(own[1], own[0]);
  const Tensor norms = sum.detach().square().sum(1, true).sqrt();
  const Tensor hidden =
      torch::linear(x, sum / norms * own[2].unsqueeze(1), named["fc1.bias"]);
  const Tensor expected = torch::linear(
      torch::tanh(hidden), named["fc2.weight"], named["fc2.bias"]);
  expected.square().sum().backward();
  EXPECT_TRUE(torch::allclose(y, expected, 1e-5, 1e-6));
  for (size_t i = 0; i < own.size(); ++i)
    EXPECT_TRUE(
        torch::allclose(parameters[i].grad(), own[i].grad(), 1e-4, 1e-5))
        << i;

  {
    // One that training has taken below zero.
    const torch::NoGradGuard no_grad;
    parameters[2][4].neg_();
  }
  lora.apply();
  const Tensor before = net.forward(x).detach();
  lora.merge();
  EXPECT_TRUE(torch::allclose(net.forward(x), before, 1e-5, 1e-6));
  lora.apply();
  EXPECT_TRUE(torch::allclose(net.forward(x), before, 1e-5, 1e-6));
}

std::shared_ptr<Net> make_adapted_net() {
  auto net = std::make_shared<Net>();
  add_lora(*net, {.rank = 2, .alpha = 2, .targets = {"all-linear"}});
  const torch::NoGradGuard no_grad;
  int64_t seed = 0;
  for (Tensor& param : net->parameters())
    param.copy_(0.3 * pseudo_random(param.sizes(), ++seed));
  return net;
}

Tensor adapted_loss(const Tensor& y) {
  return y.to(torch::kFloat).square().mean();
}

// Nobody calls apply(): forward() does, once it has the weights.
TEST(Lora, TrainsUnderDataParallelAsInOneProcess) {
  const auto data = [](int rank, int step) {
    return pseudo_random({4, 6}, 10 * step + rank);
  };
  const auto alone = make_adapted_net();
  const Lora adapters = lora_of(*alone);
  torch::optim::SGD sgd(adapters.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    adapters.apply();
    sgd.zero_grad();
    ((adapted_loss(alone->forward(data(0, step))) +
      adapted_loss(alone->forward(data(1, step)))) /
     2)
        .backward();
    sgd.step();
  }
  struct Case {
    GradSyncOptions options = {};
    WrapOptions wrap = {};
    double tolerance = 1e-4;
  };
  const GradSyncOptions overlapped{
      .bucket_capacity_bytes = 64,
      .handover = GradHandover::kMainGrad,
      .sharding = Sharding::kOptimizer,
      .gather = GatherMode::kOverlapForward};
  const GradSyncOptions in_units{
      .handover = GradHandover::kMainGrad, .sharding = Sharding::kParameters};
  for (const Case& each :
       {Case{},
        Case{.options = overlapped},
        Case{.options = in_units, .wrap = {.units = {"fc1", "fc2"}}},
        Case{
            .wrap = {.mixed_precision = MixedPrecision{}},
       .tolerance = 0.02}}) {
    run_ranks(2, [&](const CommunicatorPtr& world) {
      const auto net = make_adapted_net();
      DataParallel model(net, world, each.options, each.wrap);
      const bool is_flat = each.options.handover == GradHandover::kMainGrad;
      torch::optim::SGD optimizer(
          is_flat ? owned_parameters(model.sync()) : lora_of(*net).parameters(),
          0.1);
      for (int step = 0; step < 3; ++step) {
        adapted_loss(model.forward(data(world->rank(), step))).backward();
        if (is_flat)
          model.step(optimizer);
        else
          optimizer.step();
      }
      const FullWeights whole(model.sync());
      const auto trained = lora_of(*net).parameters();
      for (size_t i = 0; i < trained.size(); ++i)
        EXPECT_TRUE(torch::allclose(
            trained[i],
            adapters.parameters()[i],
            each.tolerance,
            each.tolerance))
            << i << ", " << to_string(each.options.sharding);
    });
  }
}

TEST(Lora, ALinearInTwoPlacesHasOneAdapter) {
  for (const char* target : {"all-linear", "first", "second"}) {
    const torch::nn::Linear linear(3, 3);
    torch::nn::Module net;
    net.register_module("first", linear);
    net.register_module("second", linear);
    const Lora lora = add_lora(net, {.rank = 1, .targets = {target}});
    EXPECT_EQ(lora.parameters().size(), 2U) << target;
    EXPECT_THAT(trained_of(net), ::testing::Contains("first.lora_A.weight"));
  }
}

TEST(Lora, WrongOptionsAreNamed) {
  Net net;
  const auto refusal = [&](const AdapterOptions& options) {
    return message_of<ConfigError>([&] { add_lora(net, options); });
  };
  EXPECT_THAT(
      refusal({.rank = 2, .targets = {"fc3"}}),
      HasSubstr("target 'fc3' is the end of no linear's name; there are: fc1"));
  EXPECT_THAT(refusal({.rank = 0, .targets = {"fc1"}}), HasSubstr("rank 0"));
  EXPECT_THAT(
      refusal({.rank = 2, .targets = {}}), HasSubstr("targets is empty"));
  for (const Tensor& param : net.parameters())
    EXPECT_TRUE(param.requires_grad());
  EXPECT_THAT(
      refusal({.rank = 2, .dropout = 0.1, .targets = {"fc1"}}),
      HasSubstr("dropout 0.1"));
  EXPECT_EQ(refusal(kFirst), "");
  EXPECT_THAT(refusal(kFirst), HasSubstr("has an adapter already"));
}

}  // namespace
}  // namespace brigade
