// Products of rows with the weights of their experts, against double.
#include "brigade/kernels/cpu/ragged_kernel.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "brigade/kernels/cpu/elements.h"

namespace brigade::ops {
namespace {

using torch::Tensor;

struct RaggedSize {
  int64_t in, out;
  std::vector<int64_t> rows;  // of each expert
};

// One panel; blocks that are not whole; depths beyond those that are taken at
// once, either way; rows beyond those whose sums are kept, and none at all.
const std::vector<RaggedSize> kRaggedSizes{
    {32, 32, {1}},
    {96, 160, {3, 0, 9, 4}},
    {320, 864, {7, 2, 33, 5, 6}},
    {2112, 96, {20, 261}},
    {64, 1120, {300, 1, 8}}};

Tensor random_bf16(at::IntArrayRef sizes) {
  return torch::randn(sizes).to(torch::kBFloat16);
}

enum class Direction { kForward, kInputGrad };

struct RaggedCase {
  std::vector<Tensor> x, weights, y;

  // Rows lie in wider ones, whose rest stays as it is.
  RaggedCase(const RaggedSize& size, Direction direction)
      : direction_(direction) {
    const bool is_forward = direction == Direction::kForward;
    depth_ = is_forward ? size.in : size.out;
    columns_ = is_forward ? size.out : size.in;
    for (const int64_t rows : size.rows) {
      x.push_back(random_bf16({rows, depth_ + 24}));
      weights.push_back(random_bf16({size.out, size.in}));
      y.push_back(torch::full({rows, columns_ + 8}, 7.0).to(torch::kBFloat16));
    }
  }

  std::vector<LinearProduct> products() const {
    std::vector<LinearProduct> products;
    for (size_t e = 0; e < x.size(); ++e)
      products.push_back(
          {.x = data<uint16_t>(x[e]),
           .weight = data<uint16_t>(weights[e]),
           .y = data<uint16_t>(y[e]),
           .rows = x[e].size(0),
           .columns = columns_,
           .depth = depth_,
           .x_stride = x[e].stride(0),
           .y_stride = y[e].stride(0),
           .weight_in_rows = direction_ == Direction::kInputGrad});
    return products;
  }
  void multiply(detail::TileKind kind) const {
    detail::ragged_products(products(), kind);
  }

  Tensor result(size_t e) const { return y[e].narrow(1, 0, columns_); }
  Tensor rest(size_t e) const { return y[e].narrow(1, columns_, 8); }
  Tensor expected(size_t e) const {
    const Tensor weight = weights[e].to(torch::kDouble);
    return x[e]
        .narrow(1, 0, depth_)
        .to(torch::kDouble)
        .matmul(direction_ == Direction::kForward ? weight.t() : weight);
  }

 private:
  Direction direction_;
  int64_t depth_, columns_;
};

class RaggedKernel : public ::testing::TestWithParam<
                         std::tuple<RaggedSize, Direction, detail::TileKind>> {
 protected:
  void SetUp() override {
    if (!detail::has_tile_kind(kind()))
      GTEST_SKIP() << "needs a processor with AMX or AVX512-BF16";
    torch::manual_seed(7);
  }
  static detail::TileKind kind() { return std::get<2>(GetParam()); }
  static RaggedCase operands() {
    return {std::get<0>(GetParam()), std::get<1>(GetParam())};
  }
};

TEST_P(RaggedKernel, MultipliesEachExpertsRowsAsDoubleDoes) {
  const RaggedCase each = operands();
  each.multiply(kind());
  for (size_t e = 0; e < each.x.size(); ++e) {
    const Tensor expected = each.expected(e);
    // What rounding the result to bf16 once may cost.
    EXPECT_LE(
        (each.result(e).to(torch::kDouble) - expected).norm().item<double>(),
        2.5e-3 * expected.norm().item<double>())
        << e;
    EXPECT_TRUE(each.rest(e).eq(7.0).all().item<bool>()) << e;
  }
}

TEST_P(RaggedKernel, HasTheBitsOfEachRowByItselfOnAnyNumberOfThreads) {
  RaggedCase each = operands();
  each.multiply(kind());
  const RaggedCase together = each;
  const int threads = at::get_num_threads();
  for (size_t e = 0; e < together.x.size(); ++e) {
    for (int64_t row = 0; row < std::min<int64_t>(9, together.x[e].size(0));
         ++row) {
      each.x = {together.x[e].narrow(0, row, 1)};
      each.weights = {together.weights[e]};
      each.y = {torch::empty_like(together.y[e].narrow(0, row, 1))};
      at::set_num_threads(row % 2 == 0 ? 3 : 1);
      each.multiply(kind());
      EXPECT_TRUE(
          torch::equal(each.result(0), together.result(e).narrow(0, row, 1)))
          << "expert " << e << ", row " << row;
    }
  }
  at::set_num_threads(threads);
}

TEST_P(RaggedKernel, HasTheBitsOfTilesThatPackTheWeight) {
  if (kind() != detail::TileKind::kAmx)
    GTEST_SKIP() << "only AMX adds up as tile_product() does";
  const RaggedCase each = operands();
  each.multiply(kind());
  for (size_t e = 0; e < each.x.size(); ++e) {
    const Tensor together = each.result(e).clone();
    for (const LinearProduct& product : each.products())
      linear_product(product);
    EXPECT_TRUE(torch::equal(each.result(e), together)) << "expert " << e;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    RaggedKernel,
    ::testing::Combine(
        ::testing::ValuesIn(kRaggedSizes),
        ::testing::Values(Direction::kForward, Direction::kInputGrad),
        ::testing::Values(
            detail::TileKind::kAmx,
            detail::TileKind::kAvx512Bf16)),
    [](const auto& test) {
      const RaggedSize& size = std::get<0>(test.param);
      const bool is_forward = std::get<1>(test.param) == Direction::kForward;
      const bool is_amx = std::get<2>(test.param) == detail::TileKind::kAmx;
      return std::to_string(size.in) + "x" + std::to_string(size.out) +
             (is_forward ? "_forward" : "_input_grad") +
             (is_amx ? "_amx" : "_avx512_bf16");
    });

}  // namespace
}  // namespace brigade::ops
