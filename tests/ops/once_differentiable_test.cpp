// A gradient of a gradient through operations whose backward is kernels: an
// error, never a gradient that lacks a part.
#include "brigade/ops/once_differentiable.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/embedding.h"
#include "brigade/ops/geglu.h"
#include "brigade/ops/linear.h"
#include "brigade/ops/rms_norm.h"
#include "brigade/ops/rotary.h"
#include "brigade/ops/swiglu.h"

namespace brigade::ops {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Tensor varied(std::vector<int64_t> shape, double phase) {
  return torch::sin(
             torch::arange(c10::multiply_integers(shape), torch::kFloat) * 1.3 +
             phase)
      .view(shape);
}

struct DifferentiatedOp {
  const char* name;  // in errors
  std::vector<int64_t> shape;
  std::function<Tensor(const Tensor& x)> function;
};

std::vector<DifferentiatedOp> differentiated_ops() {
  return {
      {"linear",
       {3, 8},
       [](auto& x) {
         return ops::linear(x, varied({4, 8}, 1));
       }},
      {"rms_norm",
       {3, 8},
       [](auto& x) {
         return ops::rms_norm(x, varied({8}, 1), RmsNormFormula(1e-5));
       }},
      {"rms_norm",
       {3, 8},
       [](auto& x) {
         return add_rms_norm(
                    x, varied({3, 8}, 2), varied({8}, 1), RmsNormFormula(1e-5))
             .first;
       }},
      {"embedding",
       {5, 8},
       [](auto& x) {
         return ops::embedding(torch::tensor({1, 4, 1}, torch::kLong), x);
       }},
      {"rotary",
       {1, 3, 2, 8},
       [](auto& x) {
         const auto table = make_rotary_table(
             torch::arange(3, torch::kLong), 8, /*theta=*/1e4);
         return ops::rotary(x, varied({1, 3, 2, 8}, 1), table).first;
       }},
      {"geglu",
       {3, 8},
       [](auto& x) {
         return ops::geglu(x, varied({3, 8}, 1));
       }},
      {"swiglu", {3, 8}, [](auto& x) { return ops::swiglu(x); }},
      {"attention",
       {1, 4, 2, 8},
       [](auto& x) {
         return ops::attention(
                    x, varied({1, 4, 2, 8}, 1), varied({1, 4, 2, 8}, 2))
             .out;
       }},
      {"linear_cross_entropy", {3, 8}, [](auto& x) {
         return ops::linear_cross_entropy(
             x, varied({6, 8}, 1), torch::tensor({1, 5, 0}, torch::kLong));
       }}};
}

TEST(OnceDifferentiable, GradientsAreTheSameAndTheirGradientsAreErrors) {
  for (const DifferentiatedOp& op : differentiated_ops()) {
    const Tensor x = varied(op.shape, 0).requires_grad_();
    const Tensor plain = torch::autograd::grad({op.function(x).sum()}, {x})[0];
    const Tensor gradient = torch::autograd::grad(
        {op.function(x).sum()},
        {x},
        {},
        /*retain_graph=*/true,
        /*create_graph=*/true)[0];
    EXPECT_TRUE(torch::equal(plain, gradient)) << op.name;
    EXPECT_THAT(
        [&] { gradient.square().sum().backward(); },
        ThrowsMessage<Error>(HasSubstr(
            "[" + std::string(op.name) +
            "] a gradient that was computed with create_graph is "
            "differentiated again")))
        << op.name;
  }
}

// A gradient that reaches main_grad has left the graph.
TEST(OnceDifferentiable, AccumulatedWeightGradientsAreTheSameUnderCreateGraph) {
  const Tensor x = varied({3, 8}, 0).requires_grad_();
  const auto accumulated = [&](bool create_graph) {
    Tensor weight = varied({4, 8}, 1).requires_grad_();
    weight.mutable_grad() = torch::zeros({4, 8});
    LinearOptions options;
    options.weight_grad = WeightGrad::kAccumulate;
    linear(x, weight, {}, options)
        .square()
        .sum()
        .backward({}, create_graph, create_graph);
    EXPECT_FALSE(weight.grad().requires_grad());
    return weight.grad();
  };
  EXPECT_TRUE(torch::equal(accumulated(true), accumulated(false)));
}

}  // namespace
}  // namespace brigade::ops
