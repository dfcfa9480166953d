// Products of every kind of operand, by whatever multiplies on this processor
// (and, in the restricted runs, on lesser ones). Oracle: PyTorch in float64.
#include "brigade/kernels/cpu/product.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <tuple>
#include <utility>
#include <vector>

#include "brigade/kernels/cpu/blocked_product.h"

namespace brigade::ops {
namespace {

using torch::Tensor;

struct Sizes {
  int64_t m, n, k;
};

// Around the sizes of tiles, panels and blocks.
const std::vector<Sizes> kSizes = {
    {16, 32, 1},
    {17, 33, 31},
    {96, 64, 256},
    {97, 65, 257},
    {101, 530, 600},
    {1030, 40, 300},
    {5, 70, 20},
    {40, 7, 20}};

// As it is, or the transpose of a dense matrix, or columns of a wider one.
enum class Lies { kDense, kTransposed, kInWider };

Tensor
matrix(int64_t rows, int64_t columns, Lies lies, torch::ScalarType dtype) {
  const auto made = [dtype](int64_t r, int64_t c) {
    return (torch::rand({r, c}) - 0.5).to(dtype);
  };
  if (lies == Lies::kTransposed)
    return made(columns, rows).t();
  if (lies == Lies::kInWider)
    return made(rows, columns + 9).narrow(1, 4, columns);
  return made(rows, columns);
}

void expect_close(const Tensor& c, const Tensor& expected, int64_t k) {
  // A float32 sum of k products below 1/4, and one rounding to bf16.
  const double limit = c.scalar_type() == torch::kBFloat16 ? 1.0 / 256 : 0.0;
  const Tensor bound =
      expected.abs() * limit + 1e-6 * static_cast<double>(k) + 1e-6;
  EXPECT_TRUE(
      ((c.to(torch::kDouble) - expected).abs() <= bound).all().item<bool>());
}

// The dtypes of the operands and of the result.
using Dtypes = std::pair<torch::ScalarType, torch::ScalarType>;

class Product
    : public ::testing::TestWithParam<std::tuple<Dtypes, Lies, Lies>> {};

TEST_P(Product, IsThatOfFloat64) {
  torch::manual_seed(1);
  const auto [dtypes, a_lies, b_lies] = GetParam();
  const auto [dtype, result] = dtypes;
  for (const auto& [m, n, k] : kSizes) {
    SCOPED_TRACE(fmt::format("{} x {} x {}", m, n, k));
    const Tensor a = matrix(m, k, a_lies, dtype);
    const Tensor b = matrix(k, n, b_lies, dtype);
    const Tensor expected = at::mm(a.to(torch::kDouble), b.to(torch::kDouble));
    const Tensor c =
        torch::full({m, n + 3}, 0.5, torch::TensorOptions().dtype(result))
            .narrow(1, 2, n);
    product(a, b, c);
    expect_close(c, expected, k);
    c.fill_(0.5);
    product(a, b, c, Destination::kAdd);
    expect_close(c, expected + 0.5, k);
    const Tensor bias = torch::rand({n}).to(result);
    product(a, b, c, Destination::kOverwrite, bias);
    expect_close(c, expected + bias.to(torch::kDouble), k);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Operands,
    Product,
    ::testing::Combine(
        ::testing::Values(
            Dtypes(torch::kFloat, torch::kFloat),
            Dtypes(torch::kBFloat16, torch::kFloat),
            Dtypes(torch::kBFloat16, torch::kBFloat16)),
        ::testing::Values(Lies::kDense, Lies::kTransposed, Lies::kInWider),
        ::testing::Values(Lies::kDense, Lies::kTransposed, Lies::kInWider)));

TEST(BlockedProduct, HasTheSameBitsOnAnyNumberOfThreads) {
  if (!has_blocked_product())
    GTEST_SKIP() << "this processor multiplies otherwise";
  const int before = at::get_num_threads();
  const Tensor a = matrix(301, 700, Lies::kDense, torch::kBFloat16);
  const Tensor b = matrix(700, 400, Lies::kTransposed, torch::kBFloat16);
  std::vector<Tensor> results;
  for (const int threads : {1, 2, 5}) {
    at::set_num_threads(threads);
    const Tensor c = torch::empty({301, 400});
    blocked_product(
        {.a = {.data = a.data_ptr(), .is_bf16 = true, .row = 700, .column = 1},
         .b = {.data = b.data_ptr(), .is_bf16 = true, .row = 1, .column = 700},
         .c = c.data_ptr(),
         .c_is_bf16 = false,
         .c_row = 400,
         .m = 301,
         .n = 400,
         .k = 700,
         .add = false,
         .bias = nullptr});
    results.push_back(c);
  }
  at::set_num_threads(before);
  EXPECT_TRUE(torch::equal(results[0], results[1]));
  EXPECT_TRUE(torch::equal(results[0], results[2]));
}

}  // namespace
}  // namespace brigade::ops
