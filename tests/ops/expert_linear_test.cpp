// Linears of experts against a loop over them in float64.
#include "brigade/ops/expert_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <tuple>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/swiglu.h"
#include "tests/support/message_of.h"

namespace brigade::ops {
namespace {

using Counts = std::vector<int64_t>;

constexpr int64_t kIn = 64;
constexpr int64_t kOut = 32;

// What the memory of a program makes of an expert's two weights.
enum class Memory { kApart, kAdjacent, kReversed };

// Experts with two weights each, on one input, then one of the two's product.
struct TestExperts {
  TestExperts(const Counts& counts, torch::ScalarType dtype, Memory memory)
      : counts(counts) {
    torch::manual_seed(11);
    int64_t rows = 0;
    for (const int64_t count : counts) {
      rows += count;
      Tensor flat = torch::randn({2 * kOut * kIn}).to(dtype);
      Tensor grads = torch::zeros({2 * kOut * kIn});
      std::vector<Tensor> pair;
      for (const int64_t i : {0, 1}) {
        const int64_t at =
            (memory == Memory::kReversed ? 1 - i : i) * kOut * kIn;
        const auto part = [&](const Tensor& of) {
          const Tensor slice = of.narrow(0, at, kOut * kIn);
          return (memory == Memory::kApart ? slice.clone() : slice)
              .view({kOut, kIn});
        };
        Tensor weight = part(flat).detach().requires_grad_(true);
        gradients.push_back(part(grads));
        pair.push_back(weight);
      }
      weights.push_back(pair);
    }
    x = torch::randn({rows, kIn}).to(dtype).requires_grad_(true);
  }

  Counts counts;
  Tensor x;
  std::vector<std::vector<Tensor>> weights;
  std::vector<Tensor> gradients;  // float32
};

// Outputs, then gradients of x and of all weights, in float64.
std::vector<Tensor> loop_over_experts(const TestExperts& of) {
  const Tensor x = of.x.detach().to(torch::kDouble).requires_grad_(true);
  const auto parts = x.split_with_sizes(of.counts);
  std::vector<Tensor> weights;
  std::vector<Tensor> results;
  for (size_t e = 0; e < of.counts.size(); ++e) {
    for (const Tensor& weight : of.weights[e])
      weights.push_back(
          weight.detach().to(torch::kDouble).requires_grad_(true));
    const auto gate = parts[e].matmul(weights[2 * e].t());
    const auto up = parts[e].matmul(weights[2 * e + 1].t());
    results.push_back(torch::silu(gate) * up);
  }
  Tensor all = torch::cat(results);
  all.square().sum().backward();
  std::vector<Tensor> of_all{all.detach(), x.grad()};
  for (const Tensor& weight : weights)
    of_all.push_back(weight.grad());
  return of_all;
}

class ExpertLinear : public ::testing::TestWithParam<
                         std::tuple<Counts, Memory, Kernels, WeightGrad>> {
 protected:
  void expect_loop(torch::ScalarType dtype, double tolerance) {
    const auto& [counts, memory, kernels, weight_grad] = GetParam();
    TestExperts of(counts, dtype, memory);
    const auto expected = loop_over_experts(of);
    const bool accumulates = weight_grad == WeightGrad::kAccumulate;
    for (size_t e = 0; accumulates && e < counts.size(); ++e) {
      for (const size_t i : {0, 1})
        of.weights[e][i].mutable_grad() = of.gradients[2 * e + i];
    }
    const auto gate_up = expert_linear(
        of.x,
        of.counts,
        of.weights,
        {.weight_grad = weight_grad,
         .kernels = kernels,
         .group = WeightGroup::kOneMatrix});
    const Tensor result = swiglu(gate_up[0], gate_up[1], kernels);
    result.to(torch::kDouble).square().sum().backward();
    std::vector<Tensor> actual{result.detach(), of.x.grad()};
    for (const auto& pair : of.weights) {
      actual.push_back(pair[0].grad());
      actual.push_back(pair[1].grad());
    }
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LE(
          (actual[i].to(torch::kDouble) - expected[i]).norm().item<double>(),
          tolerance * expected[i].norm().item<double>())
          << "result " << i;
  }
};

TEST_P(ExpertLinear, IsALoopOverExpertsInFloat32) {
  expect_loop(torch::kFloat, 3e-6);
}

TEST_P(ExpertLinear, IsALoopOverExpertsInBf16) {
  expect_loop(torch::kBFloat16, 1e-2);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    ExpertLinear,
    ::testing::Combine(
        ::testing::Values(
            Counts{5, 0, 1, 40},
            Counts{0, 3},
            Counts{9},
            Counts{0, 0}),
        ::testing::Values(Memory::kApart, Memory::kAdjacent, Memory::kReversed),
        ::testing::Values(Kernels::kAuto, Kernels::kAten),
        ::testing::Values(WeightGrad::kReturn, WeightGrad::kAccumulate)));

TEST(ExpertLinear, DefersTheGradientsOfAllWeights) {
  TestExperts of({2, 0, 3}, torch::kFloat, Memory::kAdjacent);
  const auto expected = loop_over_experts(of);
  std::vector<std::function<void()>> later;
  for (size_t e = 0; e < 3; ++e) {
    for (const size_t i : {0, 1})
      of.weights[e][i].mutable_grad() = of.gradients[2 * e + i];
  }
  LinearOptions options{
      .weight_grad = WeightGrad::kAccumulate, .group = WeightGroup::kOneMatrix};
  options.defer_weight_grad = [&](std::function<void()> compute) {
    later.push_back(std::move(compute));
  };
  const auto gate_up = expert_linear(of.x, of.counts, of.weights, options);
  swiglu(gate_up[0], gate_up[1]).square().sum().backward();
  EXPECT_EQ(of.gradients[0].abs().sum().item<double>(), 0);
  ASSERT_EQ(later.size(), 1);
  later[0]();
  for (size_t i = 0; i < of.gradients.size(); ++i)
    EXPECT_LE(
        (of.gradients[i].to(torch::kDouble) - expected[2 + i])
            .norm()
            .item<double>(),
        3e-6 * expected[2 + i].norm().item<double>())
        << i;
}

TEST(ExpertLinear, KeepsNoInputForFrozenWeights) {
  const TestExperts of({2, 0, 3}, torch::kFloat, Memory::kAdjacent);
  for (const bool trains : {false, true}) {
    for (const auto& pair : of.weights) {
      for (const Tensor& weight : pair)
        weight.requires_grad_(trains);
    }
    const Tensor x = of.x * 2;
    const auto outputs = expert_linear(x, of.counts, of.weights, {});
    EXPECT_EQ(x.use_count() > 1, trains);
    (outputs[0].sum() + outputs[1].sum()).backward();
    for (const auto& pair : of.weights) {
      for (const Tensor& weight : pair)
        EXPECT_EQ(weight.grad().defined(), trains);
    }
  }
  // Both runs add the same gradient.
  Tensor expected = torch::zeros_like(of.x);
  int64_t begin = 0;
  for (size_t e = 0; e < of.counts.size(); ++e) {
    expected.narrow(0, begin, of.counts[e])
        .add_((of.weights[e][0] + of.weights[e][1]).detach().sum(0) * 4);
    begin += of.counts[e];
  }
  EXPECT_TRUE(torch::allclose(of.x.grad(), expected, 1e-4, 1e-4));
}

TEST(ExpertLinear, RefusesRowsAndWeightsThatDoNotFit) {
  const TestExperts of({2, 3}, torch::kFloat, Memory::kApart);
  const auto message = [&](const Counts& counts, const auto& weights) {
    return message_of<Error>([&] { expert_linear(of.x, counts, weights, {}); });
  };
  EXPECT_THAT(
      message({2, 2}, of.weights),
      ::testing::HasSubstr("is not the rows of 2 experts"));
  auto other = of.weights;
  other[1][1] = torch::zeros({kOut + 1, kIn});
  EXPECT_THAT(
      message(of.counts, other), ::testing::HasSubstr("of two experts differ"));
}

}  // namespace
}  // namespace brigade::ops
