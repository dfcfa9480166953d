#include "brigade/ops/newton_schulz.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/ops/kernel_set.h"

namespace brigade {
namespace {

using torch::Tensor;

const std::vector<std::pair<int64_t, int64_t>> kShapes =
    {{8, 8}, {5, 12}, {12, 5}, {1, 7}, {7, 1}, {33, 64}, {205, 230}};

// The iteration on singular values alone, in float64.
Tensor by_singular_values(const Tensor& matrix, int steps) {
  const Tensor wide = matrix.to(torch::kDouble);
  const auto [u, s, vh] = torch::linalg_svd(wide, /*full_matrices=*/false, {});
  Tensor x = s / wide.norm();
  for (int step = 0; step < steps; ++step)
    x = 3.4445 * x - 4.7750 * x.pow(3) + 2.0315 * x.pow(5);
  return torch::matmul(u * x, vh);
}

TEST(NewtonSchulz, IsAPolynomialOfTheSingularValues) {
  torch::manual_seed(1);
  for (const auto& [rows, columns] : kShapes) {
    const Tensor matrix = torch::randn({rows, columns});
    for (const int steps : {1, 5}) {
      const Tensor result = ops::newton_schulz(
          matrix, {.steps = steps, .dtype = MuonDtype::kFloat32});
      EXPECT_EQ(result.sizes(), matrix.sizes());
      EXPECT_LT(
          (result - by_singular_values(matrix, steps))
              .abs()
              .max()
              .item<double>(),
          1e-5)
          << rows << " x " << columns;
    }
  }
}

TEST(NewtonSchulz, SingularValuesComeNearOneInBf16) {
  torch::manual_seed(2);
  // All singular values are equal, so that none is left small.
  const auto [q, r] = torch::linalg_qr(torch::randn({64, 32}));
  for (const Tensor& matrix :
       {(3 * q).contiguous(), (3 * q).t().contiguous()}) {
    const Tensor result = ops::newton_schulz(matrix);
    EXPECT_TRUE(
        torch::equal(result, result.to(torch::kBFloat16).to(torch::kFloat)));
    const Tensor values = torch::linalg_svdvals(result, {});
    EXPECT_GT(values.min().item<double>(), 0.65);
    EXPECT_LT(values.max().item<double>(), 1.2);
  }
}

// The products of a step in bf16, rounded once, by both kernel sets, at sizes
// with tiles of their own (multiples of 32) and without.
TEST(NewtonSchulz, BothKernelSetsScaleAndAddProducts) {
  torch::manual_seed(4);
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {96, 160}, {192, 576}, {576, 1536}, {45, 77}}) {
    const Tensor x = torch::randn({rows, columns}).to(torch::kBFloat16);
    Tensor square = torch::randn({rows, rows});
    square = (square + square.t()).to(torch::kBFloat16).contiguous();
    const auto expect_alike = [&](const ops::AddedProduct& product,
                                  at::IntArrayRef sizes) {
      const auto error = [&](const ops::KernelSet& kernels) {
        const Tensor y = torch::empty(sizes, torch::kBFloat16);
        kernels.add_product(y, product);
        Tensor exact = product.alpha * torch::matmul(
                                           product.a.to(torch::kDouble),
                                           product.b.to(torch::kDouble));
        if (product.c.defined())
          exact = exact + product.beta * product.c.to(torch::kDouble);
        return ((y.to(torch::kDouble) - exact).norm() / exact.norm())
            .item<double>();
      };
      EXPECT_LT(error(ops::cpu_kernels()), 2.5e-3) << sizes;
      EXPECT_LT(error(ops::aten_kernels()), 2.5e-3) << sizes;
    };
    expect_alike({.a = x, .b = x.t(), .is_symmetric = true}, {rows, rows});
    expect_alike(
        {.a = square,
         .b = square,
         .alpha = 2.0315,
         .c = square,
         .beta = -4.775,
         .is_symmetric = true},
        {rows, rows});
    expect_alike(
        {.a = square, .b = x, .c = x, .beta = 3.4445}, {rows, columns});
  }
}

TEST(NewtonSchulz, TakesMatricesOfAnySize) {
  torch::manual_seed(3);
  const Tensor matrix = torch::randn({6, 4});
  const NewtonSchulzOptions options{.dtype = MuonDtype::kFloat32};
  const Tensor expected = ops::newton_schulz(matrix, options);
  // Their squares are no float32.
  for (const double factor : {1e30, 1e-3}) {
    const Tensor scaled =
        ops::newton_schulz((matrix * factor).contiguous(), options);
    EXPECT_LT((scaled - expected).abs().max().item<double>(), 1e-4) << factor;
  }
  EXPECT_EQ(
      ops::newton_schulz(torch::zeros({6, 4})).abs().max().item<float>(), 0);
  EXPECT_EQ(ops::newton_schulz(torch::zeros({0, 4})).numel(), 0);
}

TEST(NewtonSchulz, RefusesWhatIsNoMatrix) {
  EXPECT_THROW(ops::newton_schulz(torch::zeros({2, 3, 4})), Error);
  EXPECT_THROW(ops::newton_schulz(torch::zeros({3, 4}).t()), Error);
  EXPECT_THROW(ops::newton_schulz(torch::zeros({3, 4}, torch::kDouble)), Error);
}

TEST(NewtonSchulz, CountsItsMultiplications) {
  EXPECT_EQ(
      ops::newton_schulz_flops(3, 2, {.steps = 5}),
      5 * (2 * 2 * 3 + 2 * 2 * 2 + 2 * 2 * 2 * 3));
}

}  // namespace
}  // namespace brigade
