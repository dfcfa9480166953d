// Linears with low-rank adapters against the same computed by torch in float64.
#include "brigade/ops/low_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include "brigade/base/error.h"
#include "brigade/ops/linear.h"
#include "tests/support/compare.h"

namespace brigade::ops {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

// Three linears of one input, the second without an adapter.
struct Group {
  Tensor x;
  std::vector<Tensor> weights;
  std::vector<Tensor> biases;
  std::vector<LowRank> adapters;
  std::vector<Tensor> output_grads;
};

Group make_group(torch::ScalarType dtype) {
  torch::manual_seed(3);
  const auto options = torch::dtype(dtype);
  Group group;
  group.x = torch::randn({5, 24}, options).requires_grad_();
  // Adjacent, as the data parallel's memory has them.
  const Tensor memory = torch::randn({40, 24}, options) * 0.2;
  int64_t row = 0;
  for (const int64_t rows : {16, 8, 16}) {
    group.weights.push_back(memory.narrow(0, row, rows).detach());
    group.biases.push_back(torch::randn({rows}, options));
    group.output_grads.push_back(torch::randn({5, rows}, options));
    row += rows;
  }
  const auto adapter = [&](int64_t out, double scale) {
    return LowRank{
        (torch::randn({4, 24}, options) * 0.2).detach().requires_grad_(),
        (torch::randn({out, 4}, options) * 0.2).detach().requires_grad_(),
        scale};
  };
  group.adapters = {adapter(16, 2.0), {}, adapter(16, 0.5)};
  return group;
}

Tensor wide(const Tensor& tensor) {
  return tensor.detach()
      .to(torch::kDouble)
      .requires_grad_(tensor.requires_grad());
}

// The gradients of x, and of a and b of each adapter.
struct Results {
  std::vector<Tensor> outputs;
  std::vector<Tensor> gradients;
};

Results reference(const Group& group) {
  const Tensor x = wide(group.x);
  std::vector<Tensor> leaves{x};
  Results results;
  Tensor loss = torch::zeros({}, torch::kDouble);
  for (size_t i = 0; i < group.weights.size(); ++i) {
    Tensor y =
        torch::matmul(x, wide(group.weights[i]).t()) + wide(group.biases[i]);
    if (const LowRank& adapter = group.adapters[i]; adapter.a.defined()) {
      const Tensor a = wide(adapter.a);
      const Tensor b = wide(adapter.b);
      y = y + torch::matmul(torch::matmul(x, a.t()), b.t()) * adapter.scale;
      leaves.push_back(a);
      leaves.push_back(b);
    }
    results.outputs.push_back(y.detach());
    loss = loss + (y * wide(group.output_grads[i])).sum();
  }
  loss.backward();
  for (const Tensor& leaf : leaves)
    results.gradients.push_back(leaf.grad());
  return results;
}

Results run(const Group& group, const LinearOptions& given) {
  LinearOptions options = given;
  options.group = WeightGroup::kOneMatrix;
  options.adapters = group.adapters;
  const auto outputs =
      linear_group(group.x, group.weights, group.biases, options);
  torch::autograd::backward(outputs, group.output_grads);
  Results results{outputs, {group.x.grad()}};
  for (const LowRank& adapter : group.adapters) {
    if (adapter.a.defined()) {
      results.gradients.push_back(adapter.a.grad());
      results.gradients.push_back(adapter.b.grad());
    }
  }
  return results;
}

void expect_same(const Results& actual, const Results& expected, double limit) {
  for (size_t i = 0; i < expected.outputs.size(); ++i)
    EXPECT_LE(
        testing::relative_error(
            actual.outputs[i].detach(), expected.outputs[i]),
        limit)
        << "output " << i;
  ASSERT_EQ(actual.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    ASSERT_TRUE(actual.gradients[i].defined()) << i;
    EXPECT_LE(
        testing::relative_error(actual.gradients[i], expected.gradients[i]),
        limit)
        << "gradient " << i;
  }
}

class LowRankLinear : public ::testing::TestWithParam<Kernels> {};

TEST_P(LowRankLinear, EqualsTorchInFloat32) {
  const Group group = make_group(torch::kFloat);
  expect_same(run(group, {.kernels = GetParam()}), reference(group), 1e-5);
}

TEST_P(LowRankLinear, EqualsTorchInBfloat16UpToRounding) {
  const Group group = make_group(torch::kBFloat16);
  expect_same(run(group, {.kernels = GetParam()}), reference(group), 2e-2);
}

TEST_P(LowRankLinear, AddsToMainGrad) {
  const Group group = make_group(torch::kFloat);
  for (const LowRank& adapter : group.adapters) {
    for (Tensor leaf : {adapter.a, adapter.b}) {
      if (leaf.defined())
        leaf.mutable_grad() = torch::ones_like(leaf);
    }
  }
  Results actual = run(
      group, {.weight_grad = WeightGrad::kAccumulate, .kernels = GetParam()});
  for (size_t i = 1; i < actual.gradients.size(); ++i)
    actual.gradients[i] = actual.gradients[i] - 1;
  expect_same(actual, reference(group), 1e-5);
}

TEST_P(LowRankLinear, DefersTheAdaptersGradientsAlone) {
  const Group group = make_group(torch::kFloat);
  for (const LowRank& adapter : group.adapters) {
    for (Tensor leaf : {adapter.a, adapter.b}) {
      if (leaf.defined())
        leaf.mutable_grad() = torch::zeros_like(leaf);
    }
  }
  std::vector<std::function<void()>> deferred;
  const Results actual =
      run(group,
          {.weight_grad = WeightGrad::kAccumulate,
           .defer_weight_grad =
               [&](std::function<void()> compute) {
                 deferred.push_back(std::move(compute));
               },
           .kernels = GetParam()});
  EXPECT_EQ(actual.gradients[1].abs().sum().item<float>(), 0);
  ASSERT_EQ(deferred.size(), 1U);
  deferred.front()();
  expect_same(actual, reference(group), 1e-5);
}

TEST_P(LowRankLinear, MakesItsInputOnceMore) {
  const Group group = make_group(torch::kFloat);
  const Tensor half = (group.x / 2).detach();
  LinearOptions options{.kernels = GetParam()};
  options.input = {.from = {half}, .make = [](const std::vector<Tensor>& from) {
                     return from[0] * 2;
                   }};
  expect_same(run(group, options), reference(group), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    LowRankLinear,
    ::testing::Values(Kernels::kCpu, Kernels::kAten),
    [](const auto& test) { return brigade::to_string(test.param); });

TEST(LowRankLinearErrors, AWeightThatTrainsIsRefused) {
  Group group = make_group(torch::kFloat);
  group.weights[1] = group.weights[1].clone().requires_grad_();
  EXPECT_THAT(
      [&] { run(group, {}); },
      ThrowsMessage<Error>(HasSubstr("freeze it and its bias")));
}

TEST(LowRankLinearErrors, AdaptersThatDoNotFitAreNamed) {
  Group group = make_group(torch::kFloat);
  group.adapters[0].b = torch::randn({15, 4});
  EXPECT_THAT(
      [&] { run(group, {}); },
      ThrowsMessage<Error>(HasSubstr("expected [rank, in] and [out, rank]")));
}

}  // namespace
}  // namespace brigade::ops
