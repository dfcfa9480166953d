// The three products of a linear on tiles, against double; with whichever
// instructions tile_product() takes here.
#include "brigade/kernels/cpu/linear_kernel.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/product.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/ops/linear.h"
#include "tests/support/message_of.h"

namespace brigade::ops {
namespace {

using torch::Tensor;

struct Size {
  int64_t tokens, in, out;
};

// One tile; rows that do not fill one; several blocks of every dim, not all of
// them whole; a weight so deep, either way, that sums are kept between blocks.
const std::vector<Size> kSizes{
    {32, 32, 32},
    {1, 64, 96},
    {77, 96, 160},
    {300, 320, 864},
    {1100, 64, 1120},
    {1047, 2080, 96}};

Tensor bf16(at::IntArrayRef sizes) {
  return torch::randn(sizes).to(torch::kBFloat16);
}

Tensor wide(const Tensor& x) {
  return x.to(torch::kDouble);
}

double relative_error(const Tensor& actual, const Tensor& expected) {
  return ((wide(actual) - expected).norm() / expected.norm()).item<double>();
}

// x and y lie in wider rows, whose rest stays as it is.
struct Operands {
  explicit Operands(const Size& size)
      : x_rows(bf16({size.tokens, size.in + 24})),
        y_rows(torch::full({size.tokens, size.out + 8}, 7.0F)
                   .to(torch::kBFloat16)),
        weight(bf16({size.out, size.in})) {}
  Tensor x_rows, y_rows, weight;
};

Tensor forward(const Tensor& x_rows, const Tensor& weight, Tensor y_rows) {
  linear_product(
      {.x = data<uint16_t>(x_rows),
       .weight = data<uint16_t>(weight),
       .y = data<uint16_t>(y_rows),
       .rows = x_rows.size(0),
       .columns = weight.size(0),
       .depth = weight.size(1),
       .x_stride = x_rows.stride(0),
       .y_stride = y_rows.stride(0),
       .weight_in_rows = false});
  return y_rows;
}

Tensor input_grad(const Tensor& output_grad, const Tensor& weight) {
  Tensor dx = torch::empty(
      {output_grad.size(0), weight.size(1)}, output_grad.options());
  linear_product(
      {.x = data<uint16_t>(output_grad),
       .weight = data<uint16_t>(weight),
       .y = data<uint16_t>(dx),
       .rows = output_grad.size(0),
       .columns = weight.size(1),
       .depth = weight.size(0),
       .x_stride = output_grad.stride(0),
       .y_stride = dx.stride(0),
       .weight_in_rows = true});
  return dx;
}

Tensor weight_grad(
    const Tensor& output_grad,
    const Tensor& x_rows,
    int64_t in,
    const Tensor& before) {
  Tensor sum = before.clone();
  add_weight_product(
      {.output_grad = data<uint16_t>(output_grad),
       .x = data<uint16_t>(x_rows),
       .weight_grad = data<float>(sum),
       .tokens = output_grad.size(0),
       .out = output_grad.size(1),
       .in = in,
       .output_grad_stride = output_grad.stride(0),
       .x_stride = x_rows.stride(0)});
  return sum;
}

// What rounding the result to bf16 once may cost.
constexpr double kRounding = 2.5e-3;

class LinearKernel : public ::testing::TestWithParam<Size> {
 protected:
  void SetUp() override { torch::manual_seed(GetParam().tokens); }
};

TEST_P(LinearKernel, MultipliesForwardAsDoubleDoes) {
  const Size size = GetParam();
  const Operands o(size);
  const Tensor y = forward(o.x_rows, o.weight, o.y_rows.clone());
  const Tensor x = o.x_rows.narrow(1, 0, size.in);
  EXPECT_LT(
      relative_error(
          y.narrow(1, 0, size.out), wide(x).matmul(wide(o.weight).t())),
      kRounding);
  EXPECT_TRUE(y.narrow(1, size.out, 8).eq(7.0).all().item<bool>());
}

TEST_P(LinearKernel, MultipliesTheInputGradientAsDoubleDoes) {
  const Size size = GetParam();
  const Tensor weight = bf16({size.out, size.in});
  const Tensor dy = bf16({size.tokens, size.out});
  EXPECT_LT(
      relative_error(input_grad(dy, weight), wide(dy).matmul(wide(weight))),
      kRounding);
}

TEST_P(LinearKernel, AddsTheWeightGradientAsDoubleDoes) {
  const Size size = GetParam();
  const Tensor x = bf16({size.tokens, size.in + 24});
  const Tensor dy = bf16({size.tokens, size.out});
  const Tensor before = torch::randn({size.out, size.in});
  EXPECT_LT(
      relative_error(
          weight_grad(dy, x, size.in, before),
          wide(before) + wide(dy).t().matmul(wide(x.narrow(1, 0, size.in)))),
      1e-6);
}

TEST_P(LinearKernel, AddsToTheScaledProductBeforeItRounds) {
  const Size size = GetParam();
  const Tensor x = bf16({size.tokens, size.in});
  const Tensor weight = bf16({size.in, size.out});
  const Tensor addend = 64 * bf16({size.tokens, size.out});
  const Tensor y = torch::empty_like(addend);
  linear_product(
      {.x = data<uint16_t>(x),
       .weight = data<uint16_t>(weight),
       .y = data<uint16_t>(y),
       .rows = size.tokens,
       .columns = size.out,
       .depth = size.in,
       .x_stride = size.in,
       .y_stride = size.out,
       .weight_in_rows = true,
       .alpha = -0.5F,
       .addend = data<uint16_t>(addend),
       .beta = 0.75F});
  EXPECT_LT(
      relative_error(
          y, 0.75 * wide(addend) - 0.5 * wide(x).matmul(wide(weight))),
      kRounding);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    LinearKernel,
    ::testing::ValuesIn(kSizes),
    [](const auto& test) {
      const Size& size = test.param;
      return std::to_string(size.tokens) + "_tokens_" +
             std::to_string(size.in) + "_to_" + std::to_string(size.out);
    });

class LinearKernelThreads : public ::testing::TestWithParam<Size> {};

TEST_P(LinearKernelThreads, DoNotChangeAnElement) {
  const int threads = at::get_num_threads();
  torch::manual_seed(1);
  const Size size = GetParam();
  const Operands o(size);
  const Tensor dy = bf16({size.tokens, size.out});
  const Tensor zeros = torch::zeros({size.out, size.in});
  std::vector<std::vector<Tensor>> results;
  for (const int count : {1, 2, 7}) {
    at::set_num_threads(count);
    results.push_back(
        {forward(o.x_rows, o.weight, o.y_rows.clone()),
         input_grad(dy, o.weight),
         weight_grad(dy, o.x_rows, size.in, zeros)});
  }
  at::set_num_threads(threads);
  for (size_t i = 1; i < results.size(); ++i) {
    for (size_t j = 0; j < results[i].size(); ++j)
      EXPECT_TRUE(results[i][j].equal(results[0][j])) << i << ", " << j;
  }
}

// More tiles than threads, and fewer.
INSTANTIATE_TEST_SUITE_P(
    Sizes,
    LinearKernelThreads,
    ::testing::Values(Size{210, 1216, 352}, Size{32, 32, 32}, Size{64, 64, 64}),
    [](const auto& test) { return std::to_string(test.param.tokens); });

// One block of columns, several, and sums that are kept: the bits of the whole
// product on any number of threads.
TEST(SymmetricProduct, IsTheWholeOneMirrored) {
  torch::manual_seed(3);
  const int threads = at::get_num_threads();
  for (const auto& [n, depth] : std::vector<std::pair<int64_t, int64_t>>{
           {32, 32}, {96, 64}, {576, 1536}, {1216, 96}, {1216, 1536}}) {
    const Tensor x = bf16({n, depth});
    const Tensor addend = bf16({n, n});
    const Tensor mirrored = addend + addend.t();
    LinearProduct product{
        .x = data<uint16_t>(x),
        .weight = data<uint16_t>(x),
        .rows = n,
        .columns = n,
        .depth = depth,
        .x_stride = depth,
        .y_stride = n + 8,
        .weight_in_rows = false,
        .alpha = 0.5F,
        .addend = data<uint16_t>(mirrored),
        .beta = 2};
    const Tensor rows = torch::full({n, n + 8}, 7.0F).to(torch::kBFloat16);
    Tensor whole = rows.clone();
    product.y = data<uint16_t>(whole);
    linear_product(product);
    product.is_symmetric = true;
    for (const int count : {1, 2, 5}) {
      at::set_num_threads(count);
      Tensor half = rows.clone();
      product.y = data<uint16_t>(half);
      linear_product(product);
      const Tensor lower = half.narrow(1, 0, n);
      EXPECT_TRUE(lower.equal(lower.t())) << n;
      EXPECT_TRUE(lower.tril().equal(whole.narrow(1, 0, n).tril()))
          << n << ", " << count << " threads";
      EXPECT_TRUE(half.narrow(1, n, 8).eq(7.0).all().item<bool>()) << n;
    }
    at::set_num_threads(threads);
  }
}

// A NaN of one token stays in its row.
TEST(LinearKernelNan, StaysVisible) {
  const Size size{48, 64, 96};
  Operands o(size);
  o.x_rows[3][5] = std::numeric_limits<float>::quiet_NaN();
  const Tensor y = forward(o.x_rows, o.weight, o.y_rows.clone())
                       .narrow(1, 0, size.out)
                       .to(torch::kFloat);
  EXPECT_TRUE(y[3].isnan().all().item<bool>());
  EXPECT_EQ(y.isnan().sum().item<int64_t>(), size.out);
}

// The kernel and oneDNN's product are the same linear.
TEST(Linear, EqualsProductsOnWholeTiles) {
  if (!has_weight_kernel(96, 64))
    GTEST_SKIP() << "on this processor linears are oneDNN's";
  torch::manual_seed(2);
  const Tensor x = bf16({40, 64});
  const Tensor weight = bf16({96, 64});
  const Tensor y = torch::empty({40, 96}, torch::kBFloat16);
  product(x, weight.t(), y);
  EXPECT_LT(relative_error(linear(x, weight, Tensor()), wide(y)), 1e-4);
  const Tensor dy = bf16({40, 96});
  const Tensor dx = torch::empty({40, 64}, torch::kBFloat16);
  product(dy, weight, dx);
  EXPECT_LT(relative_error(linear_backward_input(dy, weight), wide(dx)), 1e-4);
  Tensor dw = torch::ones({96, 64});
  const Tensor expected = dw.clone();
  product(dy.t(), x, expected, Destination::kAdd);
  linear_backward_weight(dy, x, dw);
  EXPECT_LT(relative_error(dw, wide(expected)), 1e-6);
}

TEST(Linear, SaysWhichOperandsDoNotFit) {
  const Tensor weight = bf16({96, 64});
  Tensor weight_grad = torch::zeros({96, 64});
  EXPECT_THAT(
      message_of<Error>([&] {
        linear_backward_input(bf16({64, 128}), weight);
      }),
      ::testing::HasSubstr("[64, 128]"));
  EXPECT_THAT(
      message_of<Error>([&] {
        linear_backward_weight(bf16({32, 96}), bf16({64, 64}), weight_grad);
      }),
      ::testing::HasSubstr("[32, 96]"));
  EXPECT_THAT(
      message_of<Error>([&] {
        linear_backward_weight(bf16({64, 96}), bf16({64, 32}), weight_grad);
      }),
      ::testing::HasSubstr("[64, 32]"));
}

}  // namespace
}  // namespace brigade::ops
