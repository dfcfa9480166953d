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

class RowMagnitude : public ::testing::TestWithParam<Kernels> {};

TEST_P(RowMagnitude, IsDorasFormula) {
  torch::manual_seed(3);
  const Decomposed given;
  const auto outputs = formula(given);
  const auto gradients =
      torch::autograd::grad(outputs, given.leaves(), given.output_grads);

  for (const WeightGrad way : {WeightGrad::kReturn, WeightGrad::kAccumulate}) {
    LinearOptions options{.weight_grad = way, .kernels = GetParam()};
    options.group = WeightGroup::kOneMatrix;
    options.adapters = given.adapters;
    for (Tensor leaf : given.leaves())
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
    const auto leaves = given.leaves();
    for (size_t i = 0; i < leaves.size(); ++i)
      EXPECT_LT(
          brigade::testing::relative_error(leaves[i].grad(), gradients[i]),
          1e-5)
          << "gradient " << i;
  }
}

TEST_P(RowMagnitude, OfTheNormsThemselvesChangesNothing) {
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
    [](const auto& test) {
      return test.param == Kernels::kCpu ? "cpu" : "aten";
    });

// What tensor parallel adds up where a weight is cut over its inputs.
TEST(RowSquares, OfColumnsAddUp) {
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
  try {
    linear_group(given.x, given.weights, given.biases, options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("does not fit output"));
  }
}

}  // namespace
}  // namespace brigade::ops
