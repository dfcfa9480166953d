// Linears with weight-decomposed adapters against DoRA's formula,
// differentiated by torch with the norms as constants.
#include "brigade/ops/row_magnitude.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <memory>
#include <vector>

#include "brigade/base/error.h"
#include "tests/support/compare.h"

namespace brigade::ops {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using torch::Tensor;

// Three linears of one input: of the second none is adapted, of the third the
// rows have no magnitudes.
struct Decomposed {
  Tensor x = torch::randn({5, 24}).requires_grad_();
  std::vector<Tensor> weights;
  std::vector<Tensor> biases;
  std::vector<LowRank> adapters;
  std::vector<Tensor> output_grads;

  Decomposed() {
    const Tensor memory = torch::randn({40, 24}) * 0.2;
    int64_t row = 0;
    for (const int64_t out : {16, 8, 16}) {
      weights.push_back(memory.narrow(0, row, out).detach());
      biases.push_back(torch::randn({out}));
      output_grads.push_back(torch::randn({5, out}));
      row += out;
    }
    const auto adapter = [] {
      return LowRank{
          .a = (torch::randn({4, 24}) * 0.2).requires_grad_(),
          .b = (torch::randn({16, 4}) * 0.2).requires_grad_(),
          .scale = 2};
    };
    adapters = {adapter(), {}, adapter()};
    adapters[0].magnitude = (torch::rand({16}) + 0.5).requires_grad_();
  }
  std::vector<Tensor> leaves() const {
    return {
        x,
        adapters[0].a,
        adapters[0].b,
        adapters[0].magnitude,
        adapters[2].a,
        adapters[2].b};
  }
};

std::vector<Tensor> formula(const Decomposed& given) {
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < 3; ++i) {
    Tensor weight = given.weights[i];
    const LowRank& adapter = given.adapters[i];
    if (adapter.a.defined())
      weight = weight + 2 * torch::matmul(adapter.b, adapter.a);
    if (adapter.magnitude.defined()) {
      const Tensor norms = weight.detach().square().sum(1).sqrt();
      weight = weight * (adapter.magnitude / norms).unsqueeze(1);
    }
    outputs.push_back(torch::matmul(given.x, weight.t()) + given.biases[i]);
  }
  return outputs;
}

// The outputs, and the gradients that autograd makes of them, wherever those of
// the weights go.
void expect_both_ways(
    const Decomposed& given,
    LinearOptions options,
    const std::vector<Tensor>& outputs) {
  const auto leaves = given.leaves();
  const auto gradients = torch::autograd::grad(
      outputs, leaves, given.output_grads, /*retain_graph=*/true);
  options.group = WeightGroup::kOneMatrix;
  options.adapters = given.adapters;
  for (const WeightGrad way : {WeightGrad::kReturn, WeightGrad::kAccumulate}) {
    options.weight_grad = way;
    for (Tensor leaf : leaves)
      leaf.mutable_grad() = torch::zeros_like(leaf);
    const auto actual =
        linear_group(given.x, given.weights, given.biases, options);
    torch::autograd::backward(actual, given.output_grads);
    for (size_t i = 0; i < 3; ++i)
      EXPECT_LT(
          brigade::testing::relative_error(
              actual[i].detach(), outputs[i].detach()),
          1e-5)
          << "output " << i;
    for (size_t i = 0; i < leaves.size(); ++i)
      EXPECT_LT(
          brigade::testing::relative_error(leaves[i].grad(), gradients[i]),
          1e-5)
          << "gradient " << i;
  }
}

class RowMagnitude : public ::testing::TestWithParam<Kernels> {};

TEST_P(RowMagnitude, IsDorasFormula) {
  torch::manual_seed(3);
  const Decomposed given;
  expect_both_ways(given, {.kernels = GetParam()}, formula(given));
}

// PEFT's DoraLinearVariant in training: W x + b + (m / n - 1) W d + m / n *
// scale B A d, with d = dropout(x).
TEST_P(RowMagnitude, IsPeftsFormulaWithDropout) {
  torch::manual_seed(7);
  Decomposed given;
  given.adapters[0].key = 5;
  given.adapters[2].key = 6;
  const InputDropout dropout{.rate = 0.4, .token_keys = torch::arange(1, 6)};
  std::vector<Tensor> expected;
  for (size_t i = 0; i < 3; ++i) {
    const LowRank& adapter = given.adapters[i];
    Tensor output =
        torch::matmul(given.x, given.weights[i].t()) + given.biases[i];
    if (adapter.a.defined()) {
      Tensor kept = torch::ones({5, 24});
      drop_elements(kept, dropout, adapter.key, GetParam());
      const Tensor left = given.x * kept / 0.6;
      const Tensor low =
          2 * torch::matmul(torch::matmul(left, adapter.a.t()), adapter.b.t());
      if (adapter.magnitude.defined()) {
        const Tensor norms =
            (given.weights[i] + 2 * torch::matmul(adapter.b, adapter.a))
                .detach()
                .norm(2, {1});
        const Tensor factor = adapter.magnitude / norms;
        output = output +
                 (factor - 1) * torch::matmul(left, given.weights[i].t()) +
                 factor * low;
      } else {
        output = output + low;
      }
    }
    expected.push_back(output);
  }
  const Tensor half = (given.x / 2).detach();
  const RemadeInput remade{
      .from = {half},
      .make = [](const std::vector<Tensor>& from) { return from[0] * 2; }};
  for (const RemadeInput& input : {RemadeInput(), remade})
    expect_both_ways(
        given,
        {.input = input, .kernels = GetParam(), .dropout = dropout},
        expected);
}

// As PEFT has it: the magnitudes are not rounded to the model's dtype.
TEST_P(RowMagnitude, IsFloat32BesideABfloat16Linear) {
  torch::manual_seed(8);
  const Decomposed given;
  Decomposed narrow = given;
  narrow.x = given.x.detach().to(torch::kBFloat16).requires_grad_();
  LinearOptions options{.kernels = GetParam()};
  options.adapters = {given.adapters[0]};
  LowRank& adapter = options.adapters[0];
  for (Tensor* part : {&adapter.a, &adapter.b})
    *part = part->detach().to(torch::kBFloat16).requires_grad_();
  const Tensor weight = given.weights[0].to(torch::kBFloat16);
  const Tensor output = linear_group(narrow.x, {weight}, {}, options)[0];
  EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
  const Tensor dy = given.output_grads[0].to(torch::kBFloat16);
  const auto found =
      torch::autograd::grad({output}, {narrow.x, adapter.magnitude}, {dy});
  EXPECT_EQ(found[1].scalar_type(), torch::kFloat);

  Decomposed wide = given;
  wide.x = narrow.x.detach().to(torch::kFloat).requires_grad_();
  wide.weights[0] = weight.to(torch::kFloat);
  wide.adapters[0].a = adapter.a.detach().to(torch::kFloat).requires_grad_();
  wide.adapters[0].b = adapter.b.detach().to(torch::kFloat).requires_grad_();
  const Tensor expected = formula(wide)[0] - given.biases[0];
  const auto gradients = torch::autograd::grad(
      {expected}, {wide.x, wide.adapters[0].magnitude}, {dy.to(torch::kFloat)});
  EXPECT_LT(
      brigade::testing::relative_error(
          output.detach().to(torch::kFloat), expected.detach()),
      8e-3);
  EXPECT_LT(
      brigade::testing::relative_error(
          found[0].to(torch::kFloat), gradients[0]),
      1e-2);
  EXPECT_LT(brigade::testing::relative_error(found[1], gradients[1]), 1e-2);
}

TEST_P(RowMagnitude, ChangesNothingWhereItIsTheNorm) {
  torch::manual_seed(4);
  Decomposed given;
  LinearOptions options{.kernels = GetParam()};
  options.adapters = {given.adapters[0]};
  const auto run = [&] {
    return linear_group(given.x, {given.weights[0]}, {}, options)[0].detach();
  };
  options.adapters[0].magnitude =
      row_squares(given.weights[0], given.adapters[0]).sqrt();
  const Tensor same = run();
  options.adapters[0].magnitude = Tensor();
  EXPECT_LT(brigade::testing::relative_error(same, run()), 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Kernels,
    RowMagnitude,
    ::testing::Values(Kernels::kCpu, Kernels::kAten),
    [](const auto& test) { return brigade::to_string(test.param); });

// What tensor parallel adds up where a weight is cut over its inputs.
TEST(RowSquares, AddUpOverColumns) {
  torch::manual_seed(5);
  const Decomposed given;
  const auto of = [&](int64_t begin, int64_t size) {
    return row_squares(
        given.weights[0].narrow(1, begin, size),
        {.a = given.adapters[0].a.narrow(1, begin, size),
         .b = given.adapters[0].b,
         .scale = 2});
  };
  EXPECT_TRUE(torch::allclose(of(0, 24), of(0, 10) + of(10, 14), 1e-5, 1e-6));
}

TEST(RowSquares, AreKeptWhereNothingTrains) {
  torch::manual_seed(6);
  Decomposed given;
  LowRank adapter = given.adapters[0];
  adapter.kept_squares = std::make_shared<Tensor>();
  int computed = 0;
  const auto compute = [&] {
    ++computed;
    return row_squares(given.weights[0], adapter);
  };
  squares_of(adapter, compute);
  squares_of(adapter, compute);
  EXPECT_EQ(computed, 2);
  adapter.magnitude = adapter.magnitude.detach();
  const Tensor first = squares_of(adapter, compute);
  EXPECT_TRUE(torch::equal(squares_of(adapter, compute), first));
  EXPECT_EQ(computed, 3);
}

TEST(RowMagnitudeErrors, MagnitudesThatDoNotFitAreNamed) {
  Decomposed given;
  LinearOptions options;
  options.adapters = given.adapters;
  options.adapters[0].magnitude = torch::ones({15});
  EXPECT_THAT(
      [&] { linear_group(given.x, given.weights, given.biases, options); },
      ThrowsMessage<Error>(HasSubstr("does not fit output")));
}

}  // namespace
}  // namespace brigade::ops
