// Products of few rows, with every instruction set of the restricted runs.
// Oracle: PyTorch in float64.
#include "brigade/kernels/cpu/row_product.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "brigade/kernels/cpu/cpu_kernels.h"

namespace brigade::ops {
namespace {

using torch::Tensor;

class RowProductOf : public ::testing::TestWithParam<torch::ScalarType> {
 protected:
  RowProductOf() { torch::manual_seed(1); }
  // A matrix in wider rows, whose rest stays as it is.
  static Tensor matrix(int64_t rows, int64_t columns) {
    return (torch::rand({rows, columns + 9}) - 0.5)
        .to(GetParam())
        .narrow(1, 4, columns);
  }
  static Tensor
  multiplied(const Tensor& x, const Tensor& weight, const Tensor& bias = {}) {
    const Tensor wider =
        torch::full({x.size(0), weight.size(0) + 3}, 7.0, x.options());
    cpu_kernels().linear(wider.narrow(1, 1, weight.size(0)), x, weight, bias);
    EXPECT_TRUE((wider.select(1, 0) == 7).all().item<bool>());
    EXPECT_TRUE(
        (wider.narrow(1, 1 + weight.size(0), 2) == 7).all().item<bool>());
    return wider.narrow(1, 1, weight.size(0));
  }
};

TEST_P(RowProductOf, IsThatOfFloat64) {
  const double rounding = GetParam() == torch::kBFloat16 ? 1.0 / 256 : 0.0;
  for (const int64_t depth : {0, 1, 15, 32, 33, 70, 576, 2051}) {
    for (const int64_t columns : {1, 3, 4, 64, 131}) {
      for (int64_t rows = 1; rows <= kMostProductRows; ++rows) {
        SCOPED_TRACE(fmt::format("{} x {} x {}", rows, columns, depth));
        const Tensor x = matrix(rows, depth);
        const Tensor weight = matrix(columns, depth);
        const Tensor bias = matrix(1, columns)[0].contiguous();
        const Tensor product =
            at::mm(x.to(torch::kDouble), weight.to(torch::kDouble).t());
        for (const Tensor& added : {Tensor(), bias}) {
          const Tensor expected =
              added.defined() ? product + added.to(torch::kDouble) : product;
          const Tensor bound = expected.abs() * rounding +
                               1e-6 * static_cast<double>(depth) + 1e-6;
          const Tensor error =
              multiplied(x, weight, added).to(torch::kDouble) - expected;
          EXPECT_TRUE((error.abs() <= bound).all().item<bool>());
        }
      }
    }
  }
}

// A generated text must not depend on those beside it.
TEST_P(RowProductOf, HasTheSameBitsInAnyCompany) {
  const int before = at::get_num_threads();
  const Tensor x = matrix(kMostProductRows, 577);
  const Tensor weight = matrix(515, 577);
  const Tensor together = multiplied(x, weight);
  for (int64_t rows = 1; rows < kMostProductRows; ++rows) {
    EXPECT_TRUE(torch::equal(
        multiplied(x.narrow(0, 1, rows), weight), together.narrow(0, 1, rows)));
  }
  EXPECT_TRUE(torch::equal(
      multiplied(x, weight.narrow(0, 3, 101)), together.narrow(1, 3, 101)));
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    EXPECT_TRUE(torch::equal(multiplied(x, weight), together)) << threads;
  }
  at::set_num_threads(before);
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    RowProductOf,
    ::testing::Values(torch::kFloat, torch::kBFloat16));

}  // namespace
}  // namespace brigade::ops
