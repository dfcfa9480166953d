// Both directions keep 16 sums in registers.
//
//   y = x weight^T: both lie along the depth. 4 rows meet 4 rows of the weight,
//   a vector of 32 of the depth at a time; each vector of sums is added up at
//   the end.
//   y = x weight: two rows of the weight at a time are interleaved to pairs as
//   they are read, 32 columns of them, and meet a pair of each of 8 rows.
#include "brigade/kernels/cpu/ragged_kernel.h"

#include "brigade/base/check.h"

#if defined(__x86_64__)

// GCC 12 takes its own header's undefined vectors for a mistake (GCC's 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <cstring>

#include "brigade/kernels/cpu/scratch.h"
#include "brigade/kernels/cpu/tile_product.h"

#define BRIGADE_AVX512_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))

namespace brigade::ops::detail {
namespace {

constexpr int64_t kLineBytes = 64;
// Bytes of the weight in the second-level cache, and of x in the first.
constexpr int64_t kWeightBytes = 256 * 1024;
constexpr int64_t kRowBytes = 16 * 1024;
// Rows whose sums wait for the next part of the depth.
constexpr int64_t kRowsWithSums = 256;

// --- y = x weight^T ---------------------------------------------------------

constexpr int64_t kDotRows = 4;
constexpr int64_t kDotColumns = 4;
constexpr int64_t kDots = kDotRows * kDotColumns;
constexpr int64_t kDotDepth = 2048;  // at once
// Far enough ahead that a line has come from memory by then.
constexpr int64_t kAheadBytes = 8 * 1024;

// The sum of each of 16 vectors.
BRIGADE_AVX512_BF16 inline __m512 add_up(const __m512 (&v)[kDots]) {
  __m512 twos[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    twos[i] = _mm512_add_ps(
        _mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
        _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));
  __m512 fours[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512d a = _mm512_castps_pd(twos[2 * i]);
    const __m512d b = _mm512_castps_pd(twos[2 * i + 1]);
    fours[i] = _mm512_add_ps(
        _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
  }
  constexpr int kEven = 0x88;
  constexpr int kOdd = 0xdd;
  const __m512 low = _mm512_add_ps(
      _mm512_shuffle_f32x4(fours[0], fours[1], kEven),
      _mm512_shuffle_f32x4(fours[0], fours[1], kOdd));
  const __m512 high = _mm512_add_ps(
      _mm512_shuffle_f32x4(fours[2], fours[3], kEven),
      _mm512_shuffle_f32x4(fours[2], fours[3], kOdd));
  return _mm512_add_ps(
      _mm512_shuffle_f32x4(low, high, kEven),
      _mm512_shuffle_f32x4(low, high, kOdd));
}

struct DotBlock {
  const uint16_t* x;
  const uint16_t* weight;
  uint16_t* y;  // null: the depth goes on
  float* sums;  // [16] of the depth so far; null: there is none before or after
  const char* ahead;
  int64_t depth, x_stride, weight_stride, y_stride;
  bool add;
};

// Asks for kLines lines per step of the depth.
template <int kRows, int kLines>
BRIGADE_AVX512_BF16 inline void dot_rows(const DotBlock& b) {
  constexpr int64_t kStep = 32;
  __m512 sum[kDots];
#pragma GCC unroll 16
  for (int i = 0; i < kDots; ++i)
    sum[i] = _mm512_setzero_ps();
  const char* ahead = b.ahead;
  for (int64_t k = 0; k < b.depth; k += kStep) {
    __m512bh right[kDotColumns];
#pragma GCC unroll 4
    for (int column = 0; column < kDotColumns; ++column)
      right[column] = reinterpret_cast<__m512bh>(
          _mm512_loadu_si512(b.weight + column * b.weight_stride + k));
#pragma GCC unroll 4
    for (int line = 0; line < kLines; ++line)
      _mm_prefetch(ahead + line * kLineBytes, _MM_HINT_T1);
    ahead += kLines * kLineBytes;
#pragma GCC unroll 4
    for (int row = 0; row < kRows; ++row) {
      const auto left = reinterpret_cast<__m512bh>(
          _mm512_loadu_si512(b.x + row * b.x_stride + k));
#pragma GCC unroll 4
      for (int column = 0; column < kDotColumns; ++column) {
        __m512& to = sum[row * kDotColumns + column];
        to = _mm512_dpbf16_ps(to, left, right[column]);
      }
    }
  }
  __m512 total = add_up(sum);
  if (b.add)
    total = _mm512_add_ps(total, _mm512_loadu_ps(b.sums));
  if (b.y == nullptr) {
    _mm512_storeu_ps(b.sums, total);
    return;
  }
  alignas(32) uint64_t rounded[kDotRows];
  _mm256_store_si256(
      reinterpret_cast<__m256i*>(rounded),
      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(total)));
#pragma GCC unroll 4
  for (int row = 0; row < kRows; ++row)
    std::memcpy(b.y + row * b.y_stride, &rounded[row], sizeof(rounded[row]));
}

template <int kLines>
BRIGADE_AVX512_BF16 void dot_block(const DotBlock& b, int64_t rows) {
  switch (rows) {
    case 1:
      return dot_rows<1, kLines>(b);
    case 2:
      return dot_rows<2, kLines>(b);
    case 3:
      return dot_rows<3, kLines>(b);
    default:
      return dot_rows<4, kLines>(b);
  }
}

void dot_block(const DotBlock& b, int64_t rows, int64_t lines) {
  switch (lines) {
    case 0:
      return dot_block<0>(b, rows);
    case 1:
      return dot_block<1>(b, rows);
    case 2:
      return dot_block<2>(b, rows);
    default:
      return dot_block<4>(b, rows);
  }
}

struct Span {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// All columns of some rows, for a part of the depth. The first rows ask for as
// many lines as they read of the weight, divided among their blocks: one, two
// or four. Later rows find the weight in the cache.
void dot_rows_of(
    const LinearProduct& p,
    const Span& rows,
    const Span& columns,
    const Span& depth,
    const uint16_t* following,
    float* sums) {
  const int64_t at_once =
      std::max(kDotRows, kRowBytes / (2 * depth.size()) / kDotRows * kDotRows);
  const int64_t row_blocks = (rows.size() + kDotRows - 1) / kDotRows;
  const int64_t first_blocks = std::min(row_blocks, at_once / kDotRows);
  const int64_t shares = first_blocks >= 4 ? 4 : first_blocks >= 2 ? 2 : 1;
  const int64_t share_bytes = kDotColumns * depth.size() * 2 / shares;
  for (int64_t first = rows.begin; first < rows.end; first += at_once) {
    const int64_t last = std::min(rows.end, first + at_once);
    for (int64_t column = columns.begin; column < columns.end;
         column += kDotColumns) {
      const uint16_t* weight = p.weight + column * p.depth + depth.begin;
      const int64_t left = (columns.end - column) * depth.size() * 2;
      const char* ahead =
          left > kAheadBytes
              ? reinterpret_cast<const char*>(weight) + kAheadBytes
              : reinterpret_cast<const char*>(following) + kAheadBytes - left;
      for (int64_t row = first; row < last; row += kDotRows) {
        const int64_t block = (row - rows.begin) / kDotRows;
        const int64_t at = (column - columns.begin) / kDotColumns * row_blocks;
        dot_block(
            {.x = p.x + row * p.x_stride + depth.begin,
             .weight = weight,
             .y = depth.end == p.depth ? p.y + row * p.y_stride + column
                                       : nullptr,
             .sums = sums + (at + block) * kDots,
             .ahead = ahead + block * share_bytes,
             .depth = depth.size(),
             .x_stride = p.x_stride,
             .weight_stride = p.depth,
             .y_stride = p.y_stride,
             .add = depth.begin > 0},
            std::min(kDotRows, last - row),
            block < shares ? 4 / shares : 0);
      }
    }
  }
}

void dot_part(
    const LinearProduct& p,
    const Span& columns,
    const uint16_t* following) {
  const int64_t depth = std::min(p.depth, kDotDepth);
  const bool keeps_sums = depth < p.depth;
  const int64_t width = std::min(
      columns.size(),
      std::max(kPanel, kWeightBytes / (2 * depth) / kPanel * kPanel));
  const int64_t height = keeps_sums ? kRowsWithSums : p.rows;
  float* sums = nullptr;
  if (keeps_sums)
    sums = static_cast<float*>(scratch(
        ScratchSlot::kKernel,
        static_cast<size_t>(
            round_up(std::min(height, p.rows), kDotRows) * width) *
            sizeof(float)));
  for (int64_t row = 0; row < p.rows; row += height) {
    const Span rows{row, std::min(p.rows, row + height)};
    for (int64_t column = columns.begin; column < columns.end;
         column += width) {
      const Span some{column, std::min(columns.end, column + width)};
      for (int64_t k = 0; k < p.depth; k += depth)
        dot_rows_of(
            p,
            rows,
            some,
            {k, std::min(p.depth, k + depth)},
            some.end < columns.end ? p.weight + some.end * p.depth : following,
            sums);
    }
  }
}

// --- y = x weight -----------------------------------------------------------

constexpr int64_t kMixRows = 8;
constexpr int64_t kMixDepth = 256;  // at once
constexpr int64_t kMixColumns = 512;

struct MixBlock {
  const uint16_t* x;
  const uint16_t* weight;
  const uint16_t* ahead;  // a panel like the weight's, which comes next
  uint16_t* y;            // null: the depth goes on
  float* sums;            // [rows][32] of the depth so far, in pairs' order
  int64_t depth, x_stride, weight_stride, y_stride;
  bool add;
};

// Interleaving leaves 4 columns in each quarter of two vectors.
BRIGADE_AVX512_BF16 inline void
round_pairs(__m512 low, __m512 high, uint16_t* y) {
  const __m512i first =
      _mm512_set_epi32(23, 22, 21, 20, 7, 6, 5, 4, 19, 18, 17, 16, 3, 2, 1, 0);
  const __m512i second = _mm512_set_epi32(
      31, 30, 29, 28, 15, 14, 13, 12, 27, 26, 25, 24, 11, 10, 9, 8);
  const __m512bh rounded = _mm512_cvtne2ps_pbh(
      _mm512_permutex2var_ps(low, second, high),
      _mm512_permutex2var_ps(low, first, high));
  _mm512_storeu_si512(y, reinterpret_cast<__m512i>(rounded));
}

template <int kRows, bool kFetches>
BRIGADE_AVX512_BF16 inline void mix_rows(const MixBlock& b) {
  __m512 low[kRows];
  __m512 high[kRows];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    low[row] = high[row] = _mm512_setzero_ps();
    if (b.add) {
      low[row] = _mm512_loadu_ps(b.sums + row * kPanel);
      high[row] = _mm512_loadu_ps(b.sums + row * kPanel + 16);
    }
  }
  for (int64_t k = 0; k < b.depth; k += 2) {
    const uint16_t* from = b.weight + k * b.weight_stride;
    const __m512i even = _mm512_loadu_si512(from);
    const __m512i odd = _mm512_loadu_si512(from + b.weight_stride);
    if (kFetches) {
      const uint16_t* ahead = b.ahead + k * b.weight_stride;
      _mm_prefetch(ahead, _MM_HINT_T1);
      _mm_prefetch(ahead + b.weight_stride, _MM_HINT_T1);
    }
    const auto first =
        reinterpret_cast<__m512bh>(_mm512_unpacklo_epi16(even, odd));
    const auto second =
        reinterpret_cast<__m512bh>(_mm512_unpackhi_epi16(even, odd));
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      int pair = 0;
      std::memcpy(&pair, b.x + row * b.x_stride + k, sizeof(pair));
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      low[row] = _mm512_dpbf16_ps(low[row], left, first);
      high[row] = _mm512_dpbf16_ps(high[row], left, second);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    if (b.y != nullptr) {
      round_pairs(low[row], high[row], b.y + row * b.y_stride);
    } else {
      _mm512_storeu_ps(b.sums + row * kPanel, low[row]);
      _mm512_storeu_ps(b.sums + row * kPanel + 16, high[row]);
    }
  }
}

template <bool kFetches>
BRIGADE_AVX512_BF16 void mix_block(const MixBlock& b, int64_t rows) {
  switch (rows) {
    case 1:
      return mix_rows<1, kFetches>(b);
    case 2:
      return mix_rows<2, kFetches>(b);
    case 3:
      return mix_rows<3, kFetches>(b);
    case 4:
      return mix_rows<4, kFetches>(b);
    case 5:
      return mix_rows<5, kFetches>(b);
    case 6:
      return mix_rows<6, kFetches>(b);
    case 7:
      return mix_rows<7, kFetches>(b);
    default:
      return mix_rows<8, kFetches>(b);
  }
}

void mix_part(
    const LinearProduct& p,
    const Span& columns,
    const uint16_t* following) {
  auto* sums = static_cast<float*>(scratch(
      ScratchSlot::kKernel, kRowsWithSums * kMixColumns * sizeof(float)));
  for (int64_t top = 0; top < p.rows; top += kRowsWithSums) {
    const Span rows{top, std::min(p.rows, top + kRowsWithSums)};
    for (int64_t left = columns.begin; left < columns.end;
         left += kMixColumns) {
      const Span some{left, std::min(columns.end, left + kMixColumns)};
      for (int64_t k = 0; k < p.depth; k += kMixDepth) {
        const Span depth{k, std::min(p.depth, k + kMixDepth)};
        for (int64_t column = some.begin; column < some.end; column += kPanel) {
          const uint16_t* weight = p.weight + depth.begin * p.columns + column;
          const uint16_t* ahead = weight + kPanel;
          if (column + kPanel >= some.end && depth.end < p.depth)
            ahead = p.weight + depth.end * p.columns + some.begin;
          else if (column + kPanel >= columns.end)
            ahead = following;
          for (int64_t row = rows.begin; row < rows.end; row += kMixRows) {
            const MixBlock block{
                .x = p.x + row * p.x_stride + depth.begin,
                .weight = weight,
                .ahead = ahead,
                .y = depth.end == p.depth ? p.y + row * p.y_stride + column
                                          : nullptr,
                .sums = sums + (column - some.begin) * kRowsWithSums +
                        (row - rows.begin) * kPanel,
                .depth = depth.size(),
                .x_stride = p.x_stride,
                .weight_stride = p.columns,
                .y_stride = p.y_stride,
                .add = depth.begin > 0};
            const int64_t count = std::min(kMixRows, rows.end - row);
            if (row == 0)
              mix_block<true>(block, count);
            else
              mix_block<false>(block, count);
          }
        }
      }
    }
  }
}

}  // namespace

void ragged_part_avx512_bf16(
    const LinearProduct& p,
    int64_t begin,
    int64_t end,
    const uint16_t* following) {
  if (p.weight_in_rows)
    mix_part(p, {begin, end}, following);
  else
    dot_part(p, {begin, end}, following);
}

}  // namespace brigade::ops::detail

#else  // not x86

namespace brigade::ops::detail {

void ragged_part_avx512_bf16(
    const LinearProduct&,
    int64_t,
    int64_t,
    const uint16_t*) {
  BRIGADE_ASSERT(false, "no AVX512-BF16 on this processor");
}

}  // namespace brigade::ops::detail

#endif
