#include "brigade/ops/input_dropout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/base/hash.h"
#include "brigade/ops/linear.h"
#include "tests/support/compare.h"

namespace brigade::ops {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

Tensor keys_of_tokens(int64_t count, int64_t first = 0) {
  Tensor keys = torch::empty({count}, torch::kLong);
  for (int64_t i = 0; i < count; ++i)
    keys[i] = static_cast<int64_t>(mix_bits(static_cast<uint64_t>(first + i)));
  return keys;
}

// 1 where an element is kept.
Tensor mask_of(
    int64_t features,
    const InputDropout& dropout,
    uint64_t key,
    Kernels kernels = Kernels::kAuto) {
  Tensor ones = torch::ones({dropout.token_keys.numel(), features});
  drop_elements(ones, dropout, key, kernels);
  return ones;
}

TEST(InputDropout, KeepsWithItsProbability) {
  for (const double rate : {0.05, 0.5, 0.9}) {
    const InputDropout dropout{.rate = rate, .token_keys = keys_of_tokens(400)};
    const Tensor mask = mask_of(500, dropout, 7);
    const double limit = 5 * std::sqrt(rate * (1 - rate) / 200000);
    EXPECT_NEAR(mask.mean().item<double>(), 1 - rate, limit);
    // No token and no feature is favoured: their shares are binomial.
    const double of_token = std::sqrt(rate * (1 - rate) / 500);
    const double of_feature = std::sqrt(rate * (1 - rate) / 400);
    EXPECT_NEAR(mask.mean(1).std().item<double>() / of_token, 1, 0.2);
    EXPECT_NEAR(mask.mean(0).std().item<double>() / of_feature, 1, 0.2);
  }
}

TEST(InputDropout, LinearsAndTokensHaveMasksThatAreUnrelated) {
  const InputDropout dropout{.rate = 0.5, .token_keys = keys_of_tokens(300)};
  const InputDropout next{.rate = 0.5, .token_keys = keys_of_tokens(300, 1)};
  const auto agreement = [](const Tensor& a, const Tensor& b) {
    return (a == b).to(torch::kDouble).mean().item<double>();
  };
  const Tensor mask = mask_of(400, dropout, 1);
  EXPECT_NEAR(agreement(mask, mask_of(400, dropout, 2)), 0.5, 0.01);
  const Tensor shifted = mask_of(400, next, 1);
  EXPECT_NEAR(agreement(mask, shifted), 0.5, 0.01);
  // One token later, which is the same token.
  EXPECT_TRUE(torch::equal(
      mask.narrow(0, 1, 299).contiguous(),
      shifted.narrow(0, 0, 299).contiguous()));
}

TEST(InputDropout, ColumnsThatRanksHaveAreThoseOfTheWhole) {
  InputDropout dropout{.rate = 0.3, .token_keys = keys_of_tokens(20)};
  const Tensor whole = mask_of(48, dropout, 9);
  for (const int64_t first : {0, 16, 32}) {
    dropout.first_feature = first;
    EXPECT_TRUE(torch::equal(
        mask_of(16, dropout, 9), whole.narrow(1, first, 16).contiguous()));
  }
}

TEST(InputDropout, BothKernelSetsDropTheSame) {
  const InputDropout dropout{
      .rate = 0.4, .token_keys = keys_of_tokens(33), .first_feature = 5};
  const uint64_t key = std::numeric_limits<uint64_t>::max() - 3;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
    const Tensor x = torch::randn({33, 37}).to(dtype);
    const Tensor cpu = x.clone();
    const Tensor aten = x.clone();
    drop_elements(cpu, dropout, key, Kernels::kCpu);
    drop_elements(aten, dropout, key, Kernels::kAten);
    EXPECT_TRUE(torch::equal(cpu, aten));
    // What is kept is as it was.
    EXPECT_TRUE(torch::equal(cpu, torch::where(cpu == 0, cpu, x)));
  }
}

TEST(InputDropout, KeysThatAreNotOnePerRowAreRefused) {
  try {
    drop_elements(
        torch::ones({4, 2}), {.rate = 0.5, .token_keys = keys_of_tokens(3)}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("[M, features] and int64 [M]"));
  }
}

// Two linears of one input with adapters.
struct Adapted {
  Tensor x = torch::randn({12, 24}).requires_grad_();
  std::vector<Tensor> weights;
  std::vector<LowRank> adapters;
  std::vector<Tensor> output_grads;

  Adapted() {
    for (const int64_t out : {16, 8}) {
      const auto draw = [](int64_t rows, int64_t columns) {
        return torch::randn({rows, columns}) * 0.3;
      };
      weights.push_back(draw(out, 24));
      output_grads.push_back(draw(12, out));
      adapters.push_back(
          {.a = draw(4, 24).requires_grad_(),
           .b = draw(out, 4).requires_grad_(),
           .scale = 1.5,
           .key = static_cast<uint64_t>(out)});
    }
  }
  std::vector<Tensor> leaves() const {
    return {x, adapters[0].a, adapters[1].a, adapters[0].b, adapters[1].b};
  }
  // Outputs, then gradients of the leaves.
  std::vector<Tensor> results_of(const std::vector<Tensor>& outputs) const {
    std::vector<Tensor> results;
    for (const Tensor& output : outputs)
      results.push_back(output.detach());
    for (const Tensor& gradient :
         torch::autograd::grad(outputs, leaves(), output_grads))
      results.push_back(gradient);
    return results;
  }
  std::vector<Tensor> run(
      const InputDropout& dropout,
      const RemadeInput& input,
      Kernels kernels) const {
    LinearOptions options{.input = input, .kernels = kernels};
    options.group = WeightGroup::kOneMatrix;
    options.adapters = adapters;
    options.dropout = dropout;
    return results_of(linear_group(x, weights, {}, options));
  }
};

class AdapterDropout : public ::testing::TestWithParam<Kernels> {};

// PEFT's: W x + scale B A dropout(x), each linear with a mask of its own.
TEST_P(AdapterDropout, AppliesToTheAdaptersInputAlone) {
  torch::manual_seed(4);
  const Adapted adapted;
  const InputDropout dropout{
      .rate = 0.4, .token_keys = keys_of_tokens(12, 100)};
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < 2; ++i) {
    const LowRank& adapter = adapted.adapters[i];
    const Tensor left =
        adapted.x * mask_of(24, dropout, adapter.key, GetParam()) / 0.6;
    outputs.push_back(
        torch::matmul(adapted.x, adapted.weights[i].t()) +
        1.5 * torch::matmul(torch::matmul(left, adapter.a.t()), adapter.b.t()));
  }
  const auto expected = adapted.results_of(outputs);
  const Tensor half = (adapted.x / 2).detach();
  const RemadeInput remade{
      .from = {half},
      .make = [](const std::vector<Tensor>& from) { return from[0] * 2; }};
  for (const RemadeInput& input : {RemadeInput(), remade}) {
    const auto actual = adapted.run(dropout, input, GetParam());
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LT(brigade::testing::relative_error(actual[i], expected[i]), 1e-5)
          << i;
  }
}

TEST_P(AdapterDropout, AccumulatesWhatItReturns) {
  torch::manual_seed(5);
  const Adapted adapted;
  const InputDropout dropout{.rate = 0.4, .token_keys = keys_of_tokens(12)};
  const auto returned = adapted.run(dropout, {}, GetParam());
  LinearOptions options{
      .weight_grad = WeightGrad::kAccumulate, .kernels = GetParam()};
  options.adapters = adapted.adapters;
  options.dropout = dropout;
  for (Tensor leaf : adapted.leaves())
    leaf.mutable_grad() = torch::zeros_like(leaf);
  torch::autograd::backward(
      linear_group(adapted.x, adapted.weights, {}, options),
      adapted.output_grads);
  const auto leaves = adapted.leaves();
  for (size_t i = 0; i < leaves.size(); ++i)
    EXPECT_LT(
        brigade::testing::relative_error(leaves[i].grad(), returned[2 + i]),
        1e-6)
        << i;
}

TEST_P(AdapterDropout, DropsNothingAtRateZero) {
  torch::manual_seed(6);
  const Adapted adapted;
  const auto none = adapted.run({}, {}, GetParam());
  const auto zero = adapted.run(
      {.rate = 0, .token_keys = keys_of_tokens(12)}, {}, GetParam());
  for (size_t i = 0; i < none.size(); ++i)
    EXPECT_TRUE(torch::equal(none[i], zero[i])) << i;
}

TEST_P(AdapterDropout, HasTheMeanOfNone) {
  torch::manual_seed(7);
  Adapted adapted;
  const auto none = adapted.run({}, {}, GetParam());
  std::vector<Tensor> sums;
  constexpr int kDraws = 2000;
  for (int draw = 0; draw < kDraws; ++draw) {
    auto drawn = adapted.run(
        {.rate = 0.25, .token_keys = keys_of_tokens(12, 1000 + 12 * draw)},
        {},
        GetParam());
    for (size_t i = 0; i < drawn.size(); ++i) {
      if (draw == 0)
        sums.push_back(std::move(drawn[i]));
      else
        sums[i] += drawn[i];
    }
  }
  // The outputs and x's gradient: their adapters' part is about as large as the
  // rest, and the error of a mean falls as the root of the draws.
  for (const size_t i : {size_t{0}, size_t{1}, size_t{2}})
    EXPECT_LT(brigade::testing::relative_error(sums[i] / kDraws, none[i]), 0.03)
        << i;
}

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    AdapterDropout,
    ::testing::Values(Kernels::kCpu, Kernels::kAten),
    [](const auto& test) { return brigade::to_string(test.param); });

}  // namespace
}  // namespace brigade::ops
