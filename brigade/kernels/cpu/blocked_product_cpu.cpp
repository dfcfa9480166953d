#include "brigade/kernels/cpu/blocked_product.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "brigade/base/check.h"
#include "brigade/kernels/cpu/scratch.h"
#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/kernels/cpu/transpose_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/blocked_product_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

#ifndef BRIGADE_BLOCKED_PRODUCT_PART
#define BRIGADE_BLOCKED_PRODUCT_PART
namespace brigade::ops {
namespace {

// The part of a product that one thread computes: c's [row, row_end) and
// [column, column_end).
struct ProductPart {
  int64_t row, row_end;
  int64_t column, column_end;
};

constexpr int64_t kProductDepth = 256;  // k of a packed panel, 16 KiB
constexpr int64_t kProductRows = 96;    // rows of a packed block, 96 KiB
constexpr int64_t kProductColumns = 512;
constexpr int64_t kProductRowsAtOnce = 1024;  // whose sums are kept, 2 MiB
constexpr int64_t kProductTile = 6;           // rows of sums in the registers

}  // namespace
}  // namespace brigade::ops
#endif

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// Two vectors: with six rows twelve sums, two of b and one of a are in the
// sixteen registers.
constexpr int64_t kLanes = HWY_LANES(float);
constexpr int64_t kPanelColumns = 2 * kLanes;

// Rows of a block of a as tiles read them: a[row * row_stride + k * k_stride].
struct LeftBlock {
  const float* data;
  int64_t row_stride, k_stride;
};

// sums of kRows rows of a and one panel of b. `width` columns of c are there.
template <int kRows>
HWY_INLINE void multiply_tile(
    const LeftBlock& a,
    const float* b,
    int64_t depth,
    bool add,
    int64_t width,
    float* c,
    int64_t c_row) {
  const DF df;
  VF low[kRows];
  VF high[kRows];
  for (int row = 0; row < kRows; ++row) {
    low[row] = hn::Zero(df);
    high[row] = hn::Zero(df);
  }
  for (int64_t k = 0; k < depth; ++k) {
    const VF b_low = hn::Load(df, b + k * kPanelColumns);
    const VF b_high = hn::Load(df, b + k * kPanelColumns + kLanes);
    const float* left = a.data + k * a.k_stride;
    for (int row = 0; row < kRows; ++row) {
      const VF value = hn::Set(df, left[row * a.row_stride]);
      low[row] = hn::MulAdd(value, b_low, low[row]);
      high[row] = hn::MulAdd(value, b_high, high[row]);
    }
  }
  for (int row = 0; row < kRows; ++row) {
    float* to = c + row * c_row;
    if (width == kPanelColumns) {
      if (add) {
        low[row] = hn::Add(hn::LoadU(df, to), low[row]);
        high[row] = hn::Add(hn::LoadU(df, to + kLanes), high[row]);
      }
      hn::StoreU(low[row], df, to);
      hn::StoreU(high[row], df, to + kLanes);
      continue;
    }
    HWY_ALIGN float sums[kPanelColumns];
    hn::Store(low[row], df, sums);
    hn::Store(high[row], df, sums + kLanes);
    for (int64_t i = 0; i < width; ++i)
      to[i] = add ? to[i] + sums[i] : sums[i];
  }
}

HWY_INLINE void multiply_rows_of_tile(
    int64_t rows,
    const LeftBlock& a,
    const float* b,
    int64_t depth,
    bool add,
    int64_t width,
    float* c,
    int64_t c_row) {
  switch (rows) {
    case 1:
      return multiply_tile<1>(a, b, depth, add, width, c, c_row);
    case 2:
      return multiply_tile<2>(a, b, depth, add, width, c, c_row);
    case 3:
      return multiply_tile<3>(a, b, depth, add, width, c, c_row);
    case 4:
      return multiply_tile<4>(a, b, depth, add, width, c, c_row);
    case 5:
      return multiply_tile<5>(a, b, depth, add, width, c, c_row);
    default:
      return multiply_tile<kProductTile>(a, b, depth, add, width, c, c_row);
  }
}

// Widened, or rounded.
template <typename From, typename To>
HWY_INLINE void convert(const From* from, int64_t numel, To* to) {
  for_vectors(
      static_cast<size_t>(numel),
      [&](size_t i, auto load, auto store)
          HWY_ATTR { store(load(from + i), to + i); });
}

// from[line * stride + i] for i of `width`, widened, to to[line * to_stride +
// i].
void widen_lines(
    const ProductOperand& matrix,
    int64_t offset,
    int64_t stride,
    int64_t lines,
    int64_t width,
    float* to,
    int64_t to_stride) {
  for (int64_t line = 0; line < lines; ++line) {
    const int64_t at = offset + line * stride;
    if (matrix.is_bf16)
      convert(
          static_cast<const uint16_t*>(matrix.data) + at,
          width,
          to + line * to_stride);
    else
      convert(
          static_cast<const float*>(matrix.data) + at,
          width,
          to + line * to_stride);
  }
}

// [panel][k][kPanelColumns], zeros beyond `columns`.
void pack_right(
    const ProductOperand& b,
    int64_t k,
    int64_t depth,
    int64_t column,
    int64_t columns,
    float* lines,
    float* packed) {
  for (int64_t first = 0; first < columns; first += kPanelColumns) {
    const int64_t width = std::min(kPanelColumns, columns - first);
    const int64_t offset = k * b.row + (column + first) * b.column;
    float* panel = packed + first * depth;
    if (width < kPanelColumns)
      std::fill_n(panel, depth * kPanelColumns, 0.0F);
    if (b.column == 1) {
      widen_lines(b, offset, b.row, depth, width, panel, kPanelColumns);
    } else {
      widen_lines(b, offset, b.column, width, depth, lines, depth);
      transpose_words(lines, depth, width, depth, panel, kPanelColumns);
    }
  }
}

LeftBlock pack_left(
    const ProductOperand& a,
    int64_t row,
    int64_t rows,
    int64_t k,
    int64_t depth,
    float* packed) {
  const int64_t offset = row * a.row + k * a.column;
  if (a.column == 1) {
    const int64_t stride = kProductDepth + 16;  // rows in other cache sets
    widen_lines(a, offset, a.row, rows, depth, packed, stride);
    return {packed, stride, 1};
  }
  widen_lines(a, offset, a.column, depth, rows, packed, kProductRows);
  return {packed, 1, kProductRows};
}

struct ProductBuffers {
  float* left;
  float* right;
  float* lines;
  float* sums;
};

// sums [rows, columns of the block] = or += the packed operands.
void multiply_product_block(
    const LeftBlock& a,
    int64_t rows,
    const float* right,
    int64_t depth,
    int64_t columns,
    bool add,
    float* c,
    int64_t c_row) {
  for (int64_t column = 0; column < columns; column += kPanelColumns) {
    for (int64_t row = 0; row < rows; row += kProductTile)
      multiply_rows_of_tile(
          std::min(kProductTile, rows - row),
          {a.data + row * a.row_stride, a.row_stride, a.k_stride},
          right + column * depth,
          depth,
          add,
          std::min(kPanelColumns, columns - column),
          c + row * c_row + column,
          c_row);
  }
}

void round_product_rows(
    const float* sums,
    int64_t sums_row,
    int64_t rows,
    int64_t columns,
    uint16_t* c,
    int64_t c_row) {
  for (int64_t row = 0; row < rows; ++row)
    convert(sums + row * sums_row, columns, c + row * c_row);
}

// The rows [row, row_end) of the columns [column, column + columns).
void multiply_product_rows(
    const BlockedProduct& p,
    int64_t row,
    int64_t row_end,
    int64_t column,
    int64_t columns,
    int64_t chunk,
    const ProductBuffers& buffers) {
  const bool keeps_sums = p.c_is_bf16 && chunk < p.k;
  for (int64_t k = 0; k < p.k; k += chunk) {
    const int64_t depth = std::min(chunk, p.k - k);
    pack_right(p.b, k, depth, column, columns, buffers.lines, buffers.right);
    for (int64_t m = row; m < row_end; m += kProductRows) {
      const int64_t rows = std::min(kProductRows, row_end - m);
      const int64_t place = m * p.c_row + column;  // in p.c
      float* c = p.c_is_bf16
                     ? buffers.sums + (keeps_sums ? (m - row) * columns : 0)
                     : static_cast<float*>(p.c) + place;
      const int64_t c_row = p.c_is_bf16 ? columns : p.c_row;
      bool add = p.add || k > 0;
      for (int64_t i = 0; !add && p.bias != nullptr && i < rows; ++i)
        std::copy_n(p.bias + column, columns, c + i * c_row);
      add = add || p.bias != nullptr;
      const LeftBlock a = pack_left(p.a, m, rows, k, depth, buffers.left);
      multiply_product_block(
          a, rows, buffers.right, depth, columns, add, c, c_row);
      if (p.c_is_bf16 && k + depth == p.k)
        round_product_rows(
            c,
            c_row,
            rows,
            columns,
            static_cast<uint16_t*>(p.c) + place,
            p.c_row);
    }
  }
}

void multiply_product_part(const BlockedProduct& p, const ProductPart& part) {
  const int64_t chunks = (p.k + kProductDepth - 1) / kProductDepth;
  const int64_t chunk = (p.k + chunks - 1) / chunks;
  const int64_t columns = part.column_end - part.column;
  const int64_t blocks = (columns + kProductColumns - 1) / kProductColumns;
  const int64_t width =
      round_up((columns + blocks - 1) / blocks, kPanelColumns);
  const bool keeps_sums = p.c_is_bf16 && chunks > 1;
  const int64_t run =
      keeps_sums ? std::min(kProductRowsAtOnce, part.row_end - part.row)
                 : part.row_end - part.row;
  ProductBuffers buffers{};
  scratch_pieces(ScratchSlot::kProduct, [&](ScratchPieces& pieces) {
    buffers.left = pieces.take<float>(
        static_cast<size_t>(kProductRows * (kProductDepth + 16)));
    buffers.right = pieces.take<float>(static_cast<size_t>(width * chunk));
    buffers.lines =
        pieces.take<float>(static_cast<size_t>(kPanelColumns * chunk));
    buffers.sums = pieces.take<float>(static_cast<size_t>(
        !p.c_is_bf16 ? 0 : (keeps_sums ? run : kProductRows) * width));
  });
  for (int64_t row = part.row; row < part.row_end; row += run) {
    for (int64_t column = part.column; column < part.column_end;
         column += width)
      multiply_product_rows(
          p,
          row,
          std::min(part.row_end, row + run),
          column,
          std::min(width, part.column_end - column),
          chunk,
          buffers);
  }
}

bool has_wide_multiply_add() {
  return HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86;
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(multiply_product_part);
HWY_EXPORT(has_wide_multiply_add);

int64_t product_bound(int64_t size, int64_t unit, int64_t parts, int64_t i) {
  const int64_t units = (size + unit - 1) / unit;
  return std::min(size, units * i / parts * unit);
}

}  // namespace

bool has_blocked_product() {
  return HWY_DYNAMIC_DISPATCH(has_wide_multiply_add)();
}

void blocked_product(const BlockedProduct& p) {
  BRIGADE_ASSERT(
      p.m > 0 && p.n > 0 && p.k > 0 && !(p.add && p.c_is_bf16) &&
          (p.a.row == 1 || p.a.column == 1) &&
          (p.b.row == 1 || p.b.column == 1),
      "a product of {} x {} x {}",
      p.m,
      p.n,
      p.k);
  // The columns are cut first: each thread packs what it reads.
  constexpr int64_t kNarrowest = 128;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t across = std::clamp<int64_t>(p.n / kNarrowest, 1, threads);
  const int64_t down = std::max<int64_t>(1, threads / across);
  at::parallel_for(0, across * down, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t r = i / across;
      const int64_t c = i % across;
      const ProductPart part{
          product_bound(p.m, kProductTile, down, r),
          product_bound(p.m, kProductTile, down, r + 1),
          product_bound(p.n, kPanel, across, c),
          product_bound(p.n, kPanel, across, c + 1)};
      if (part.row < part.row_end && part.column < part.column_end)
        HWY_DYNAMIC_DISPATCH(multiply_product_part)(p, part);
    }
  });
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
