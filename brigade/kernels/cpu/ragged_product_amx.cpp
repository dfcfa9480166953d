// Products of few rows on AMX, transposed: the weight is what passes by once,
// so it is not packed.
//
//   y^T = weight x^T: rows of the weight are the left operand where they lie, x
//   is packed as the right one. Sums turn as they are rounded.
//   y = x weight: two rows of the weight at a time are woven to pairs, 32
//   columns of them, while the 32 before meet the rows of x.
//   weight_grad += output_grad^T x: the gradient's tiles are loaded, added to
//   and stored where they lie.
//
// Rows of x are tiles of 16, the last filled up with zeros, four at once. An
// element's sum runs up the depth, 32 at a time, as tile_product()'s does.
#include "brigade/base/check.h"
#include "brigade/kernels/cpu/ragged_kernel.h"

#if defined(__x86_64__)

// GCC 12 takes its own header's undefined vectors for a mistake (GCC's 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <algorithm>
#include <tuple>

#include "brigade/kernels/cpu/scratch.h"
#include "brigade/kernels/cpu/tile_product.h"

#define BRIGADE_AMX \
  __attribute__((   \
      target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512bf16")))

namespace brigade::ops::detail {
namespace {

constexpr int64_t kTile = 16;             // rows of a tile, and its sums across
constexpr int64_t kTileNumel = 512;       // bf16 of a tile
constexpr int64_t kSums = kTile * kTile;  // float32 of a tile
constexpr int64_t kTileBytes = 64;        // between packed rows
constexpr int64_t kMostTiles = 4;         // of rows, at once
constexpr int64_t kColumns = 512;         // whose sums the second cache keeps
// At once, so that operands of four tiles stay in the first cache.
constexpr int64_t kForwardDepth = 256;
constexpr int64_t kBackwardDepth = 128;

struct ColumnRange {
  int64_t begin, end;
};

int64_t row_tiles(const LinearProduct& p) {
  return (p.rows + kTile - 1) / kTile;
}

// 16 x 16 of 32 bits.
BRIGADE_AMX inline void transpose_words(__m512i (&v)[kTile]) {
  __m512i t[kTile];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(v[2 * i], v[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(v[2 * i], v[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  constexpr int kEven = 0x88;
  constexpr int kOdd = 0xdd;
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], kEven);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], kOdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], kEven);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], kOdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], kEven);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], kEven);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], kOdd);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], kOdd);
  }
}

// Indices of elements: the halves of two vectors, and those of one, by turns.
alignas(64) constexpr uint16_t kLowPairs[kDepth] = {
    0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
alignas(64) constexpr uint16_t kHighPairs[kDepth] = {
    16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
    24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
alignas(64) constexpr uint16_t kHalves[kDepth] = {
    0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
    8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

// x as tiles [depth / 32][tile of rows]: of rows as they are, or transposed,
// each 32 bits a pair along the depth.
template <bool kTransposed>
BRIGADE_AMX void pack_tiles(const LinearProduct& p, uint16_t* packed) {
  const int64_t tiles = row_tiles(p);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t rows = std::min(kTile, p.rows - tile * kTile);
    const uint16_t* from = p.x + tile * kTile * p.x_stride;
    for (int64_t k = 0; k < p.depth; k += kDepth) {
      uint16_t* to = packed + (k / kDepth * tiles + tile) * kTileNumel;
      __m512i v[kTile];
#pragma GCC unroll 16
      for (int row = 0; row < kTile; ++row)
        v[row] = row < rows ? _mm512_loadu_si512(from + row * p.x_stride + k)
                            : _mm512_setzero_si512();
      if (kTransposed)
        transpose_words(v);
#pragma GCC unroll 16
      for (int row = 0; row < kTile; ++row)
        _mm512_storeu_si512(to + row * kDepth, v[row]);
    }
  }
}

// GCC 12's loads of tiles name no memory: what was stored before must be there.
inline void tiles_read_memory() {
  asm volatile("" : : : "memory");
}

// Sums of kTiles tiles of rows, in tile registers 0 to 3.
template <int kTiles>
BRIGADE_AMX inline void begin_sums(const float* sums, bool add) {
  tiles_read_memory();
  if (!add) {
    _tile_zero(0);
    if constexpr (kTiles > 1)
      _tile_zero(1);
    if constexpr (kTiles > 2)
      _tile_zero(2);
    if constexpr (kTiles > 3)
      _tile_zero(3);
    return;
  }
  _tile_loadd(0, sums, kTileBytes);
  if constexpr (kTiles > 1)
    _tile_loadd(1, sums + kSums, kTileBytes);
  if constexpr (kTiles > 2)
    _tile_loadd(2, sums + 2 * kSums, kTileBytes);
  if constexpr (kTiles > 3)
    _tile_loadd(3, sums + 3 * kSums, kTileBytes);
}

template <int kTiles>
BRIGADE_AMX inline void end_sums(float* sums) {
  _tile_stored(0, sums, kTileBytes);
  if constexpr (kTiles > 1)
    _tile_stored(1, sums + kSums, kTileBytes);
  if constexpr (kTiles > 2)
    _tile_stored(2, sums + 2 * kSums, kTileBytes);
  if constexpr (kTiles > 3)
    _tile_stored(3, sums + 3 * kSums, kTileBytes);
}

// --- y^T = weight x^T -------------------------------------------------------

// 16 rows of the weight meet kTiles tiles of x.
struct ForwardBlock {
  const uint16_t* weight;
  const uint16_t* x;  // packed, `x_stride` elements to the next 32 of the depth
  float* sums;
  const uint16_t* ahead;  // as the weight, read later
  int64_t depth, weight_stride, x_stride;
  bool add;
};

template <int kTiles>
BRIGADE_AMX void forward_block(const ForwardBlock& b) {
  begin_sums<kTiles>(b.sums, b.add);
  const int64_t fetched = kTile * kDepth / b.depth;  // rows, each step
  const uint16_t* ahead = b.ahead;
  for (int64_t k = 0; k < b.depth; k += kDepth) {
    // One line of a row: the processor itself asks for those beside it.
    for (int64_t row = 0; ahead != nullptr && row < fetched; ++row) {
      _mm_prefetch(ahead, _MM_HINT_T1);
      ahead += b.weight_stride;
    }
    const uint16_t* x = b.x + k / kDepth * b.x_stride;
    _tile_loadd(4, b.weight + k, b.weight_stride * 2);
    _tile_loadd(5, x, kTileBytes);
    _tile_dpbf16ps(0, 4, 5);
    if constexpr (kTiles > 1) {
      _tile_loadd(6, x + kTileNumel, kTileBytes);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (kTiles > 2) {
      _tile_loadd(7, x + 2 * kTileNumel, kTileBytes);
      _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kTiles > 3) {
      _tile_loadd(5, x + 3 * kTileNumel, kTileBytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  end_sums<kTiles>(b.sums);
}

void forward_block(const ForwardBlock& b, int64_t tiles) {
  switch (tiles) {
    case 1:
      return forward_block<1>(b);
    case 2:
      return forward_block<2>(b);
    case 3:
      return forward_block<3>(b);
    default:
      return forward_block<4>(b);
  }
}

// y's columns [column, column + 32) of a tile of rows from its sums of 16
// columns each.
BRIGADE_AMX void round_transposed(
    const LinearProduct& p,
    const float* low,
    const float* high,
    int64_t tile,
    int64_t column) {
  const __m512i pairs = _mm512_load_si512(kHalves);
  __m512i v[kTile];
#pragma GCC unroll 16
  for (int i = 0; i < kTile; ++i) {
    const float* from =
        i < 8 ? low + 2 * i * kTile : high + (2 * i - 16) * kTile;
    v[i] = _mm512_permutexvar_epi16(
        pairs,
        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
            _mm512_loadu_ps(from + kTile), _mm512_loadu_ps(from))));
  }
  transpose_words(v);
  const int64_t rows = std::min(kTile, p.rows - tile * kTile);
  uint16_t* y = p.y + tile * kTile * p.y_stride + column;
  for (int64_t row = 0; row < rows; ++row)
    _mm512_storeu_si512(y + row * p.y_stride, v[row]);
}

void forward_part(const LinearProduct& p, const ColumnRange& columns) {
  const int64_t tiles = row_tiles(p);
  const auto [x, sums] =
      scratch_pieces(ScratchSlot::kKernel, [&](ScratchPieces& pieces) {
        return std::tuple{
            pieces.take<uint16_t>(
                static_cast<size_t>(p.depth / kDepth * tiles * kTileNumel)),
            pieces.take<float>(
                static_cast<size_t>(kColumns / kTile * kMostTiles * kSums))};
      });
  pack_tiles<true>(p, x);
  constexpr int64_t kAhead = 64;  // rows of the weight
  for (int64_t left = columns.begin; left < columns.end; left += kColumns) {
    const ColumnRange some{left, std::min(columns.end, left + kColumns)};
    for (int64_t tile = 0; tile < tiles; tile += kMostTiles) {
      const int64_t count = std::min(kMostTiles, tiles - tile);
      for (int64_t k = 0; k < p.depth; k += kForwardDepth) {
        const int64_t depth = std::min(kForwardDepth, p.depth - k);
        for (int64_t column = some.begin; column < some.end; column += kTile) {
          float* to = sums + (column - some.begin) * kMostTiles * kTile;
          forward_block(
              {.weight = p.weight + column * p.depth + k,
               .x = x + (k / kDepth * tiles + tile) * kTileNumel,
               .sums = to,
               .ahead = tile == 0 && column + kAhead < some.end
                            ? p.weight + (column + kAhead) * p.depth + k
                            : nullptr,
               .depth = depth,
               .weight_stride = p.depth,
               .x_stride = tiles * kTileNumel,
               .add = k > 0},
              count);
        }
      }
      for (int64_t column = some.begin; column < some.end; column += kPanel) {
        const float* low = sums + (column - some.begin) * kMostTiles * kTile;
        for (int64_t t = 0; t < count; ++t)
          round_transposed(
              p,
              low + t * kSums,
              low + (kMostTiles + t) * kSums,
              tile + t,
              column);
      }
    }
  }
}

// --- y = x weight -----------------------------------------------------------

// Weaves a panel of the weight, 32 columns of a part of the depth, to two tiles
// for each 32 of that: a few rows at a time while tiles multiply.
class Weaver {
 public:
  Weaver(const uint16_t* panel, int64_t stride, int64_t depth, uint16_t* woven)
      : panel_(panel), stride_(stride), depth_(depth), woven_(woven) {}
  BRIGADE_AMX void weave(int64_t rows) {
    const __m512i low = _mm512_load_si512(kLowPairs);
    const __m512i high = _mm512_load_si512(kHighPairs);
    const int64_t end = std::min(depth_, row_ + rows);
    for (; row_ < end; row_ += 2) {
      const uint16_t* from = panel_ + row_ * stride_;
      const __m512i even = _mm512_loadu_si512(from);
      const __m512i odd = _mm512_loadu_si512(from + stride_);
      uint16_t* to =
          woven_ + row_ / kDepth * 2 * kTileNumel + row_ % kDepth / 2 * kDepth;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_storeu_si512(
          to + kTileNumel, _mm512_permutex2var_epi16(even, high, odd));
    }
  }

 private:
  const uint16_t* panel_;
  int64_t stride_, depth_;
  uint16_t* woven_;
  int64_t row_ = 0;
};

// kTiles tiles of x meet 16 columns of a woven panel.
struct BackwardBlock {
  const uint16_t* x;  // packed, `x_stride` elements to the next 32 of the depth
  const uint16_t* woven;
  float* sums;
  int64_t depth, x_stride;
  bool add;
  int64_t rows;  // to weave at each step
};

template <int kTiles>
BRIGADE_AMX void backward_block(const BackwardBlock& b, Weaver& next) {
  begin_sums<kTiles>(b.sums, b.add);
  for (int64_t k = 0; k < b.depth; k += kDepth) {
    const uint16_t* x = b.x + k / kDepth * b.x_stride;
    _tile_loadd(7, b.woven + k / kDepth * 2 * kTileNumel, kTileBytes);
    _tile_loadd(4, x, kTileBytes);
    _tile_dpbf16ps(0, 4, 7);
    if constexpr (kTiles > 1) {
      _tile_loadd(5, x + kTileNumel, kTileBytes);
      _tile_dpbf16ps(1, 5, 7);
    }
    next.weave(b.rows);
    if constexpr (kTiles > 2) {
      _tile_loadd(6, x + 2 * kTileNumel, kTileBytes);
      _tile_dpbf16ps(2, 6, 7);
    }
    if constexpr (kTiles > 3) {
      _tile_loadd(4, x + 3 * kTileNumel, kTileBytes);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  end_sums<kTiles>(b.sums);
}

void backward_block(const BackwardBlock& b, int64_t tiles, Weaver& next) {
  switch (tiles) {
    case 1:
      return backward_block<1>(b, next);
    case 2:
      return backward_block<2>(b, next);
    case 3:
      return backward_block<3>(b, next);
    default:
      return backward_block<4>(b, next);
  }
}

// y's columns [column, column + 32), from sums [2][tile][16][16].
BRIGADE_AMX void
round_columns(const LinearProduct& p, const float* sums, int64_t column) {
  const float* high = sums + row_tiles(p) * kSums;
  uint16_t* y = p.y + column;
  for (int64_t row = 0; row < p.rows; ++row)
    _mm512_storeu_si512(
        y + row * p.y_stride,
        reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(
            _mm512_loadu_ps(high + row * kTile),
            _mm512_loadu_ps(sums + row * kTile))));
}

void backward_part(const LinearProduct& p, const ColumnRange& columns) {
  const int64_t tiles = row_tiles(p);
  auto [x, sums, now, next] =
      scratch_pieces(ScratchSlot::kKernel, [&](ScratchPieces& pieces) {
        return std::tuple{
            pieces.take<uint16_t>(
                static_cast<size_t>(p.depth / kDepth * tiles * kTileNumel)),
            pieces.take<float>(
                static_cast<size_t>(kColumns / kTile * tiles * kSums)),
            pieces.take<uint16_t>(kBackwardDepth * kPanel),
            pieces.take<uint16_t>(kBackwardDepth * kPanel)};
      });
  pack_tiles<false>(p, x);
  const auto weaver_at = [&](int64_t column, int64_t k, uint16_t* woven) {
    const int64_t depth = std::min(kBackwardDepth, p.depth - k);
    return Weaver(p.weight + k * p.columns + column, p.columns, depth, woven);
  };
  weaver_at(columns.begin, 0, now).weave(kBackwardDepth);
  for (int64_t left = columns.begin; left < columns.end; left += kColumns) {
    const ColumnRange some{left, std::min(columns.end, left + kColumns)};
    for (int64_t k = 0; k < p.depth; k += kBackwardDepth) {
      const int64_t depth = std::min(kBackwardDepth, p.depth - k);
      const bool is_last = k + depth == p.depth;
      const int64_t steps =
          (tiles + kMostTiles - 1) / kMostTiles * 2 * (depth / kDepth);
      for (int64_t column = some.begin; column < some.end; column += kPanel) {
        const bool turns = column + kPanel == some.end;
        // Nothing follows the last one.
        Weaver weaver = !turns     ? weaver_at(column + kPanel, k, next)
                        : !is_last ? weaver_at(some.begin, k + depth, next)
                        : some.end < columns.end
                            ? weaver_at(some.end, 0, next)
                            : weaver_at(some.begin, p.depth, next);
        float* to = sums + (column - some.begin) * tiles * kTile;
        for (int64_t tile = 0; tile < tiles; tile += kMostTiles) {
          for (int64_t half = 0; half < 2; ++half) {
            backward_block(
                {.x = x + (k / kDepth * tiles + tile) * kTileNumel,
                 .woven = now + half * kTileNumel,
                 .sums = to + (half * tiles + tile) * kSums,
                 .depth = depth,
                 .x_stride = tiles * kTileNumel,
                 .add = k > 0,
                 .rows = round_up((kBackwardDepth + steps - 1) / steps, 2)},
                std::min(kMostTiles, tiles - tile),
                weaver);
          }
        }
        weaver.weave(kBackwardDepth);
        std::swap(now, next);
        if (is_last)
          round_columns(p, to, column);
      }
    }
  }
}

// --- weight_grad += output_grad^T x -----------------------------------------

// Tokens by twos, zeros where there are none: tiles [columns / 16][tokens / 32]
// of 16 pairs, or transposed, of 16 columns. 32 columns.
template <bool kTransposed>
BRIGADE_AMX void pack_pairs(
    const uint16_t* from,
    int64_t stride,
    int64_t tokens,
    uint16_t* packed) {
  const __m512i first = _mm512_load_si512(kLowPairs);
  const __m512i second = _mm512_load_si512(kHighPairs);
  const int64_t across = round_up(tokens, kDepth) * kTile;
  for (int64_t token = 0; token < tokens; token += kDepth) {
    const int64_t count = std::min(kDepth, tokens - token);
    __m512i low[kTile];
    __m512i high[kTile];
#pragma GCC unroll 16
    for (int i = 0; i < kTile; ++i) {
      const uint16_t* pair = from + (token + 2 * i) * stride;
      const __m512i zero = _mm512_setzero_si512();
      const __m512i even = 2 * i < count ? _mm512_loadu_si512(pair) : zero;
      const __m512i odd =
          2 * i + 1 < count ? _mm512_loadu_si512(pair + stride) : zero;
      low[i] = _mm512_permutex2var_epi16(even, first, odd);
      high[i] = _mm512_permutex2var_epi16(even, second, odd);
    }
    if (kTransposed) {
      transpose_words(low);
      transpose_words(high);
    }
    uint16_t* to = packed + token * kTile;
#pragma GCC unroll 16
    for (int i = 0; i < kTile; ++i) {
      _mm512_storeu_si512(to + i * kDepth, low[i]);
      _mm512_storeu_si512(to + across + i * kDepth, high[i]);
    }
  }
}

// 16 rows of the gradient, kTiles times 16 of its columns.
template <int kTiles>
BRIGADE_AMX inline void add_to_gradient(
    const uint16_t* output_grad,
    const uint16_t* x,
    int64_t tokens,
    float* gradient,
    int64_t stride) {
  const int64_t across = tokens * kTile;
  tiles_read_memory();
  _tile_loadd(0, gradient, stride * 4);
  _tile_loadd(1, gradient + kTile, stride * 4);
  if constexpr (kTiles > 2) {
    _tile_loadd(2, gradient + 2 * kTile, stride * 4);
    _tile_loadd(3, gradient + 3 * kTile, stride * 4);
  }
  for (int64_t token = 0; token < tokens; token += kDepth) {
    const uint16_t* right = x + token * kTile;
    _tile_loadd(4, output_grad + token * kTile, kTileBytes);
    _tile_loadd(5, right, kTileBytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, right + across, kTileBytes);
    _tile_dpbf16ps(1, 4, 6);
    if constexpr (kTiles > 2) {
      _tile_loadd(7, right + 2 * across, kTileBytes);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, right + 3 * across, kTileBytes);
      _tile_dpbf16ps(3, 4, 5);
    }
  }
  _tile_stored(0, gradient, stride * 4);
  _tile_stored(1, gradient + kTile, stride * 4);
  if constexpr (kTiles > 2) {
    _tile_stored(2, gradient + 2 * kTile, stride * 4);
    _tile_stored(3, gradient + 3 * kTile, stride * 4);
  }
}

}  // namespace

void pack_tokens_amx(
    const WeightProduct& p,
    int64_t begin,
    int64_t end,
    uint16_t* packed) {
  for (int64_t column = begin; column < end; column += kPanel)
    pack_pairs<false>(
        p.x + column,
        p.x_stride,
        p.tokens,
        packed + column * round_up(p.tokens, kDepth));
}

BRIGADE_AMX void add_weight_rows_amx(
    const WeightProduct& p,
    const uint16_t* x,
    int64_t begin,
    int64_t end) {
  constexpr int64_t kTurned = 256;  // columns of output_grad in the cache
  const int64_t tokens = round_up(p.tokens, kDepth);
  auto* turned = static_cast<uint16_t*>(scratch(
      ScratchSlot::kKernel,
      static_cast<size_t>(kTurned * tokens) * sizeof(uint16_t)));
  for (int64_t first = begin; first < end; first += kTurned) {
    const int64_t last = std::min(end, first + kTurned);
    for (int64_t row = first; row < last; row += kPanel)
      pack_pairs<true>(
          p.output_grad + row,
          p.output_grad_stride,
          p.tokens,
          turned + (row - first) * tokens);
    for (int64_t row = first; row < last; row += kTile) {
      const uint16_t* left = turned + (row - first) * tokens;
      float* gradient = p.weight_grad + row * p.in;
      int64_t column = 0;
      for (; column + 4 * kTile <= p.in; column += 4 * kTile)
        add_to_gradient<4>(
            left, x + column * tokens, tokens, gradient + column, p.in);
      if (column < p.in)
        add_to_gradient<2>(
            left, x + column * tokens, tokens, gradient + column, p.in);
    }
  }
}

void ragged_part_amx(const LinearProduct& p, int64_t begin, int64_t end) {
  if (p.rows == 0)
    return;
  if (p.weight_in_rows)
    backward_part(p, {begin, end});
  else
    forward_part(p, {begin, end});
}

}  // namespace brigade::ops::detail

#else  // not x86

namespace brigade::ops::detail {

void ragged_part_amx(const LinearProduct&, int64_t, int64_t) {
  BRIGADE_ASSERT(false, "no AMX on this processor");
}
void pack_tokens_amx(const WeightProduct&, int64_t, int64_t, uint16_t*) {
  BRIGADE_ASSERT(false, "no AMX on this processor");
}
void add_weight_rows_amx(
    const WeightProduct&,
    const uint16_t*,
    int64_t,
    int64_t) {
  BRIGADE_ASSERT(false, "no AMX on this processor");
}

}  // namespace brigade::ops::detail

#endif
