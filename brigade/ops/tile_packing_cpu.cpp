// Operands in the order in which tile_product() reads them, results as bf16.
#include <algorithm>
#include <cstring>

#include "brigade/ops/simd_targets.h"
#include "brigade/ops/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/ops/tile_packing_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// Rows k and k + 1 interleaved.
void interleave(
    const uint16_t* even,
    const uint16_t* odd,
    int64_t numel,
    uint16_t* to) {
  const DU16 du16;
  const DU32 du32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(du16));
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    const auto low = hn::PromoteTo(du32, hn::LoadU(du16, even + i));
    const auto up = hn::PromoteTo(du32, hn::LoadU(du16, odd + i));
    hn::StoreU(
        hn::Or(low, hn::ShiftLeft<16>(up)),
        du32,
        reinterpret_cast<uint32_t*>(to + 2 * i));
  }
  for (; i < numel; ++i) {
    to[2 * i] = even[i];
    to[2 * i + 1] = odd[i];
  }
}

// The rows of pack_rows(), a few at a time through all panels: whole cache
// lines of `from` are read once.
void pack_row_pairs(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed) {
  constexpr int64_t kRowsAtOnce = 16;
  static const uint16_t zeros[kPanel] = {};
  for (int64_t first = 0; first < k; first += kRowsAtOnce) {
    const int64_t end = std::min(k, first + kRowsAtOnce);
    for (int64_t column = 0; column < n; column += kPanel) {
      uint16_t* panel = packed + column * padded_k;
      const int64_t width = std::min(kPanel, n - column);
      for (int64_t row = first; row < end; row += 2) {
        const uint16_t* even = from + row * stride + column;
        interleave(
            even,
            row + 1 < k ? even + stride : zeros,
            width,
            panel + row * kPanel);
      }
    }
  }
}

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

#undef BRIGADE_TRANSPOSES_TILES  // once a target
#if HWY_TARGET <= HWY_AVX3
#define BRIGADE_TRANSPOSES_TILES 1

// Transposes 16 rows of 16 words and stores them, rows to_stride words apart.
HWY_INLINE void
store_transposed(__m512i (&a)[16], uint32_t* to, int64_t to_stride) {
  __m512i b[16];
  // Within 128 bits: words, then pairs of words.
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // a[4 i + j]: of rows 4 i to 4 i + 3, columns j, 4 + j, 8 + j and 12 + j.
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xee);
    const auto put = [&](int column, __m512i value) HWY_ATTR {
      _mm512_storeu_si512(to + column * to_stride, value);
    };
    put(j, _mm512_shuffle_i32x4(low01, low23, 0x88));
    put(4 + j, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    put(8 + j, _mm512_shuffle_i32x4(high01, high23, 0x88));
    put(12 + j, _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

HWY_INLINE void transpose_word_tile(
    const uint32_t* from,
    int64_t from_stride,
    uint32_t* to,
    int64_t to_stride) {
  __m512i rows[16];
  for (int i = 0; i < 16; ++i)
    rows[i] = _mm512_loadu_si512(from + i * from_stride);
  store_transposed(rows, to, to_stride);
}

// 32 rows by 16 columns of 16 bits: two rows woven into a row of words.
HWY_INLINE void transpose_tile(
    const uint16_t* from,
    int64_t from_stride,
    uint16_t* to,
    int64_t to_stride) {
  __m512i rows[16];
  const auto row = [&](int i) HWY_ATTR {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(from + i * from_stride)));
  };
  for (int i = 0; i < 16; ++i)
    rows[i] =
        _mm512_or_si512(row(2 * i), _mm512_slli_epi32(row(2 * i + 1), 16));
  store_transposed(rows, reinterpret_cast<uint32_t*>(to), to_stride / 2);
}
#else
#define BRIGADE_TRANSPOSES_TILES 0
#endif

// 32-bit words, floats or pairs of bf16: in tiles of 16 x 16 where the target
// has them, in blocks of 4 x 4, the rest word by word.
void transpose_words(
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

void round_row_simd(const float* from, int64_t numel, uint16_t* to) {
  for_vectors(
      static_cast<size_t>(numel), [&](size_t i, auto get, auto put) HWY_ATTR {
        put(get(from + i), to + i);
      });
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(interleave);
HWY_EXPORT(pack_row_pairs);
HWY_EXPORT(transpose_tiles);
HWY_EXPORT(round_row_simd);
HWY_EXPORT(transpose_words);

// Words of 32 bits, whatever they hold.
const uint32_t* words(const void* from) {
  return static_cast<const uint32_t*>(from);
}
uint32_t* words(void* to) {
  return static_cast<uint32_t*>(to);
}

// The part of a panel beyond n columns, or beyond k rows, is 0.
template <typename T>
void clear_panels(int64_t n, int64_t padded_k, int64_t k, T* packed) {
  const int64_t whole = k == padded_k ? n / kPanel * kPanel : 0;
  std::fill_n(
      packed + whole * padded_k,
      (round_up(n, kPanel) - whole) * padded_k,
      T(0));
}

}  // namespace

void pack_rows(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed) {
  clear_panels(n, padded_k, k, packed);
  HWY_DYNAMIC_DISPATCH(pack_row_pairs)(from, stride, k, n, padded_k, packed);
}

void pack_rows(
    const float* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    float* packed) {
  clear_panels(n, padded_k, k, packed);
  for (int64_t column = 0; column < n; column += kPanel) {
    const int64_t width = std::min(kPanel, n - column);
    for (int64_t row = 0; row < k; ++row)
      std::copy_n(
          from + row * stride + column,
          width,
          packed + column * padded_k + row * kPanel);
  }
}

void pack_columns(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed) {
  clear_panels(n, padded_k, k, packed);
  for (int64_t column = 0; column < n; column += kPanel) {
    const int64_t width = std::min(kPanel, n - column);
    uint16_t* panel = packed + column * padded_k;
    const uint16_t* source = from + column * stride;
    if (stride % 2 == 0 && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
      HWY_DYNAMIC_DISPATCH(transpose_words)
      (words(source), stride / 2, width, k / 2, words(panel), kPanel);
    } else {
      for (int64_t i = 0; i < width; ++i) {
        for (int64_t row = 0; row + 1 < k; row += 2)
          std::memcpy(
              panel + row * kPanel + 2 * i, source + i * stride + row, 4);
      }
    }
    if (k % 2 == 1) {
      for (int64_t i = 0; i < width; ++i) {
        panel[(k - 1) * kPanel + 2 * i] = source[i * stride + k - 1];
        panel[(k - 1) * kPanel + 2 * i + 1] = 0;
      }
    }
  }
}

void pack_columns(
    const float* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    float* packed) {
  clear_panels(n, padded_k, k, packed);
  for (int64_t column = 0; column < n; column += kPanel) {
    HWY_DYNAMIC_DISPATCH(transpose_words)
    (words(from + column * stride),
     stride,
     std::min(kPanel, n - column),
     k,
     words(packed + column * padded_k),
     kPanel);
  }
}

void transpose(
    const float* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    float* to,
    int64_t to_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_words)
  (words(from), from_stride, rows, columns, words(to), to_stride);
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
        HWY_DYNAMIC_DISPATCH(interleave)
        (even, even + from_stride, width, woven + pair * 2 * kStrip);
      }
      if (to_stride % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        HWY_DYNAMIC_DISPATCH(transpose_words)
        (words(woven),
         kStrip,
         pairs,
         width,
         words(to + column * to_stride + row),
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

void round_row(const float* from, int64_t numel, uint16_t* to) {
  if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    return detail::round_row_avx512_bf16(from, numel, to);
  HWY_DYNAMIC_DISPATCH(round_row_simd)(from, numel, to);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
