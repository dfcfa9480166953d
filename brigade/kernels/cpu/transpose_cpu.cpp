// Rows as columns: words of 32 bits in tiles that the registers hold, 16-bit
// values as pairs.
#include "brigade/kernels/cpu/transpose_kernel.h"

#include <algorithm>
#include <cstring>

#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/transpose_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/transpose_tile-inl.h"
#include "brigade/kernels/cpu/weave-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// Blocks of 4 x 4 words, the rest word by word.
void transpose_blocks(
    const uint32_t* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    uint32_t* to,
    int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  const int64_t whole_rows = 0;
  const int64_t whole_columns = 0;
#else
  const hn::Full128<uint32_t> d;
  const hn::Full128<uint64_t> d64;
  const int64_t whole_rows = rows / 4 * 4;
  const int64_t whole_columns = columns / 4 * 4;
  for (int64_t row = 0; row < whole_rows; row += 4) {
    const uint32_t* source = from + row * from_stride;
    for (int64_t column = 0; column < whole_columns; column += 4) {
      const auto r0 = hn::LoadU(d, source + column);
      const auto r1 = hn::LoadU(d, source + from_stride + column);
      const auto r2 = hn::LoadU(d, source + 2 * from_stride + column);
      const auto r3 = hn::LoadU(d, source + 3 * from_stride + column);
      const auto a = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
      const auto b = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
      const auto e = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
      const auto f = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
      uint32_t* target = to + column * to_stride + row;
      const auto put = [&](int64_t i, auto value) HWY_ATTR {
        hn::StoreU(hn::BitCast(d, value), d, target + i * to_stride);
      };
      put(0, hn::InterleaveLower(d64, a, b));
      put(1, hn::InterleaveUpper(d64, a, b));
      put(2, hn::InterleaveLower(d64, e, f));
      put(3, hn::InterleaveUpper(d64, e, f));
    }
  }
#endif
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t first = row < whole_rows ? whole_columns : 0;
    for (int64_t column = first; column < columns; ++column)
      to[column * to_stride + row] = from[row * from_stride + column];
  }
}

// 32-bit words, floats or pairs of bf16: in tiles of 16 x 16 where the target
// has them, in blocks of 4 x 4, the rest word by word.
void transpose_words_simd(
    const uint32_t* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    uint32_t* to,
    int64_t to_stride) {
#if BRIGADE_TRANSPOSES_TILES
  const int64_t tile_rows = rows / 16 * 16;
  const int64_t tile_columns = columns / 16 * 16;
  for (int64_t row = 0; row < tile_rows; row += 16) {
    for (int64_t column = 0; column < tile_columns; column += 16)
      transpose_word_tile(
          from + row * from_stride + column,
          from_stride,
          to + column * to_stride + row,
          to_stride);
  }
  transpose_blocks(
      from + tile_columns,
      from_stride,
      tile_rows,
      columns - tile_columns,
      to + tile_columns * to_stride,
      to_stride);
  from += tile_rows * from_stride;
  to += tile_rows;
  rows -= tile_rows;
#endif
  transpose_blocks(from, from_stride, rows, columns, to, to_stride);
}

// Whole tiles of 32 rows by 16 columns; false: not on this target.
bool transpose_tiles(
    const uint16_t* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    uint16_t* to,
    int64_t to_stride) {
#if BRIGADE_TRANSPOSES_TILES
  for (int64_t row = 0; row + 32 <= rows; row += 32) {
    for (int64_t column = 0; column + 16 <= columns; column += 16)
      transpose_tile(
          from + row * from_stride + column,
          from_stride,
          to + column * to_stride + row,
          to_stride);
  }
  return true;
#else
  (void)from, (void)from_stride, (void)rows, (void)columns;
  (void)to, (void)to_stride;
  return false;
#endif
}

void weave(
    const uint16_t* even,
    const uint16_t* odd,
    int64_t numel,
    uint16_t* to) {
  interleave(even, odd, numel, to);
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(weave);
HWY_EXPORT(transpose_tiles);
HWY_EXPORT(transpose_words_simd);
}  // namespace

void transpose_words(
    const void* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    void* to,
    int64_t to_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_words_simd)
  (static_cast<const uint32_t*>(from),
   from_stride,
   rows,
   columns,
   static_cast<uint32_t*>(to),
   to_stride);
}

void transpose(
    const float* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    float* to,
    int64_t to_stride) {
  transpose_words(from, from_stride, rows, columns, to, to_stride);
}

namespace {

// Two rows are woven into words, words are transposed.
void transpose_in_strips(
    const uint16_t* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    uint16_t* to,
    int64_t to_stride) {
  constexpr int64_t kStrip = 64;
  alignas(64) uint16_t woven[16 * 2 * kStrip];
  for (int64_t row = 0; row < rows; row += 32) {
    const int64_t pairs = std::min<int64_t>(32, rows - row) / 2;
    for (int64_t column = 0; column < columns; column += kStrip) {
      const int64_t width = std::min(kStrip, columns - column);
      for (int64_t pair = 0; pair < pairs; ++pair) {
        const uint16_t* even = from + (row + 2 * pair) * from_stride + column;
        HWY_DYNAMIC_DISPATCH(weave)
        (even, even + from_stride, width, woven + pair * 2 * kStrip);
      }
      if (to_stride % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        transpose_words(
            woven,
            kStrip,
            pairs,
            width,
            to + column * to_stride + row,
            to_stride / 2);
      } else {
        for (int64_t i = 0; i < width; ++i) {
          for (int64_t pair = 0; pair < pairs; ++pair)
            std::memcpy(
                to + (column + i) * to_stride + row + 2 * pair,
                woven + pair * 2 * kStrip + 2 * i,
                4);
        }
      }
    }
  }
  if (rows % 2 == 1) {
    for (int64_t column = 0; column < columns; ++column)
      to[column * to_stride + rows - 1] =
          from[(rows - 1) * from_stride + column];
  }
}

}  // namespace

void transpose(
    const uint16_t* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    uint16_t* to,
    int64_t to_stride) {
  const bool as_words =
      to_stride % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 4 == 0;
  const bool tiles =
      as_words && HWY_DYNAMIC_DISPATCH(transpose_tiles)(
                      from, from_stride, rows, columns, to, to_stride);
  const int64_t done_rows = tiles ? rows / 32 * 32 : 0;
  const int64_t done_columns = tiles ? columns / 16 * 16 : 0;
  if (done_columns < columns)
    transpose_in_strips(
        from + done_columns,
        from_stride,
        done_rows,
        columns - done_columns,
        to + done_columns * to_stride,
        to_stride);
  if (done_rows < rows)
    transpose_in_strips(
        from + done_rows * from_stride,
        from_stride,
        rows - done_rows,
        columns,
        to + done_rows,
        to_stride);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
