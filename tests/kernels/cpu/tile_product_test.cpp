// Every kind of instruction that small products run on, against double.
#include "brigade/kernels/cpu/tile_product.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>
#include <utility>
#include <vector>

namespace brigade::ops {
namespace {

using torch::Tensor;

struct Size {
  int64_t m, n, k;
};

// Whole blocks, their last halves, and rows enough for several passes; depths
// that AMX does not take.
const std::vector<Size> kSizes{
    {16, 48, 6},
    {64, 64, 48},
    {16, 16, 32},
    {32, 32, 32},
    {48, 48, 64},
    {64, 80, 96},
    {80, 32, 288},
    {416, 64, 128}};

template <typename T>
const T* data(const Tensor& tensor) {
  return static_cast<const T*>(tensor.data_ptr());
}

enum class Left { kRows, kPacked };

// c [m, n] of a [m, k] and b [k, n], by `multiply`, c's rows a little apart.
template <typename T, typename Multiply>
Tensor product_by(
    const Tensor& a,
    Left left,
    const Tensor& b,
    const Tensor& before,
    bool add,
    Multiply multiply) {
  const int64_t m = a.size(0);
  const int64_t k = a.size(1);
  const int64_t n = b.size(1);
  std::vector<T> packed(static_cast<size_t>(round_up(n, kPanel) * k));
  pack_rows(data<T>(b), n, k, n, k, packed.data());
  std::vector<T> left_packed(static_cast<size_t>(round_up(m, kPanel) * k));
  const Tensor a_columns = a.t().contiguous();
  pack_rows(data<T>(a_columns), m, k, m, k, left_packed.data());
  const int64_t stride = n + 16;
  Tensor c = torch::full({m, stride}, 7.0);
  c.narrow(1, 0, n).copy_(before);
  const TileSession session;
  multiply(TileProduct<T>{
      .a = left == Left::kPacked ? left_packed.data() : data<T>(a),
      .b = packed.data(),
      .c = c.data_ptr<float>(),
      .m = m,
      .n = n,
      .k = k,
      .a_stride = left == Left::kPacked ? kPanel * k : k,
      .panel_stride = kPanel * k,
      .c_stride = stride,
      .add = add,
      .a_packed = left == Left::kPacked,
      .soon = {
          packed.data(), static_cast<int64_t>(packed.size() * sizeof(T))}});
  EXPECT_TRUE(c.narrow(1, n, 16).eq(7.0).all().item<bool>());
  return c.narrow(1, 0, n);
}

template <typename T, typename Multiply>
void expect_products(
    torch::ScalarType dtype,
    int64_t least_depth,
    Left left,
    Multiply multiply) {
  for (const Size& size : kSizes) {
    if (size.k % least_depth != 0)
      continue;
    torch::manual_seed(size.m + size.k);
    const Tensor a = torch::randn({size.m, size.k}).to(dtype);
    const Tensor b = torch::randn({size.k, size.n}).to(dtype);
    const Tensor before = torch::randn({size.m, size.n});
    const Tensor product =
        torch::matmul(a.to(torch::kDouble), b.to(torch::kDouble));
    for (const bool add : {false, true}) {
      const Tensor c = product_by<T>(a, left, b, before, add, multiply);
      const Tensor expected = add ? product + before : product;
      const double error =
          ((c - expected).norm() / expected.norm()).template item<double>();
      EXPECT_LT(error, 1e-6) << size.m << " x " << size.n << " x " << size.k
                             << (add ? ", added" : "");
    }
  }
}

void multiply_by(detail::TileKind kind, const TileProduct<uint16_t>& p) {
  switch (kind) {
    case detail::TileKind::kGeneric:
      return detail::tile_product_generic(p);
    case detail::TileKind::kAvx512Bf16:
      return detail::tile_product_avx512_bf16(p);
    case detail::TileKind::kAmx:
      return detail::tile_product_amx(p);
    case detail::TileKind::kBfmmla:
      return detail::tile_product_bfmmla(p);
  }
}

class Bf16Tiles : public ::testing::TestWithParam<detail::TileKind> {
 protected:
  void SetUp() override {
    if (!detail::has_tile_kind(GetParam()))
      GTEST_SKIP() << "this processor has no such instructions";
  }
};

TEST_P(Bf16Tiles, MultiplyAsDoubleDoes) {
  expect_products<uint16_t>(
      torch::kBFloat16,
      GetParam() == detail::TileKind::kAmx ? kDepth : 2,
      Left::kRows,
      [](const TileProduct<uint16_t>& p) { multiply_by(GetParam(), p); });
}

TEST_P(Bf16Tiles, MultiplyAPackedLeftOperandAsDoubleDoes) {
  if (GetParam() == detail::TileKind::kAmx)
    GTEST_SKIP() << "AMX reads rows of the left operand";
  expect_products<uint16_t>(
      torch::kBFloat16, 2, Left::kPacked, [](const TileProduct<uint16_t>& p) {
        multiply_by(GetParam(), p);
      });
}

TEST_P(Bf16Tiles, DoNothingWithoutRowsOrColumns) {
  const TileSession session;
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{0, 32}, {32, 0}})
    multiply_by(
        GetParam(),
        {.a = nullptr,
         .b = nullptr,
         .c = nullptr,
         .m = m,
         .n = n,
         .k = 32,
         .a_stride = 32,
         .panel_stride = 32 * kPanel,
         .c_stride = 32,
         .add = true});
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    Bf16Tiles,
    ::testing::Values(
        detail::TileKind::kGeneric,
        detail::TileKind::kAvx512Bf16,
        detail::TileKind::kAmx,
        detail::TileKind::kBfmmla));

TEST(Float32Tiles, MultiplyAsDoubleDoes) {
  for (const Left left : {Left::kRows, Left::kPacked})
    expect_products<float>(
        torch::kFloat, 2, left, [](const TileProduct<float>& p) {
          detail::tile_product_generic(p);
        });
}

TEST(PackColumns, IsPackRowsOfTheTranspose) {
  for (const auto& [columns, k] :
       {std::pair<int64_t, int64_t>{5, 33},
        {32, 33},
        {70, 33},
        {70, 48},
        {70, 96}}) {
    for (const int64_t multiple : {int64_t{2}, kDepth}) {
      const int64_t padded = round_up(k, multiple);
      const Tensor b = torch::randn({k, columns}).to(torch::kBFloat16);
      const Tensor transposed = b.t().contiguous();
      const auto numel =
          static_cast<size_t>(round_up(columns, kPanel) * padded);
      std::vector<uint16_t> by_row(numel);
      std::vector<uint16_t> by_column(numel);
      pack_rows(data<uint16_t>(b), columns, k, columns, padded, by_row.data());
      pack_columns(
          data<uint16_t>(transposed), k, k, columns, padded, by_column.data());
      EXPECT_EQ(by_row, by_column) << k << " x " << columns;
    }
  }
}

TEST(RoundRow, RoundsToNearestEven) {
  for (const int64_t numel : {1, 15, 16, 45, 96}) {
    Tensor row = torch::randn({numel}).mul_(100);
    row[0] = 257.0;  // between 256 and 258
    const Tensor to = torch::zeros({numel + 1}, torch::kBFloat16);
    round_row(
        row.data_ptr<float>(), numel, static_cast<uint16_t*>(to.data_ptr()));
    EXPECT_TRUE(to.narrow(0, 0, numel).equal(row.to(torch::kBFloat16)));
    EXPECT_EQ(to[numel].item<float>(), 0.0F);
    row[numel - 1] = std::numeric_limits<float>::quiet_NaN();
    round_row(
        row.data_ptr<float>(), numel, static_cast<uint16_t*>(to.data_ptr()));
    EXPECT_TRUE(to[numel - 1].isnan().item<bool>());
  }
}

// Whole tiles, their edges, rows of odd length, and a target between words.
TEST(Transpose, MovesEveryElement) {
  for (const int64_t rows : {1, 31, 64, 70}) {
    for (const int64_t columns : {1, 16, 43, 96}) {
      for (const int64_t to_stride : {rows, rows + 1, rows + 2}) {
        const Tensor from =
            torch::randn({rows, columns + 3}).to(torch::kBFloat16);
        Tensor to = torch::zeros({columns * to_stride}, torch::kBFloat16);
        transpose(
            data<uint16_t>(from),
            columns + 3,
            rows,
            columns,
            static_cast<uint16_t*>(to.data_ptr()),
            to_stride);
        EXPECT_TRUE(to.as_strided({columns, rows}, {to_stride, 1})
                        .equal(from.narrow(1, 0, columns).t()))
            << rows << " x " << columns << " to " << to_stride;
      }
    }
  }
}

TEST(Transpose, MovesEveryFloat) {
  for (const int64_t rows : {3, 16, 37}) {
    for (const int64_t columns : {2, 32, 53}) {
      const Tensor from = torch::randn({rows, columns});
      const Tensor to = torch::empty({columns, rows});
      transpose(
          data<float>(from),
          columns,
          rows,
          columns,
          to.data_ptr<float>(),
          rows);
      EXPECT_TRUE(to.equal(from.t())) << rows << " x " << columns;
    }
  }
}

}  // namespace
}  // namespace brigade::ops
