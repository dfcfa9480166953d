#include <algorithm>
#include <cstring>

#include "brigade/ops/simd_targets.h"
#include "brigade/ops/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/ops/tile_product_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// Rows that share a load of b: as many sums as the registers hold.
constexpr int kRows = HWY_LANES(float) >= 16 ? 8 : 4;
static_assert(kRowTile % kRows == 0);

template <int kVectors>
HWY_INLINE void load_sums(
    const float* c,
    int64_t stride,
    bool add,
    VF (&sum)[kRows][kVectors]) {
  const DF df;
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v)
      sum[row][v] = add ? hn::LoadU(df, c + row * stride + v * hn::Lanes(df))
                        : hn::Zero(df);
  }
}

template <int kVectors>
HWY_INLINE void
store_sums(VF (&sum)[kRows][kVectors], int64_t stride, float* c) {
  const DF df;
  for (int row = 0; row < kRows; ++row) {
    for (int v = 0; v < kVectors; ++v)
      hn::StoreU(sum[row][v], df, c + row * stride + v * hn::Lanes(df));
  }
}

template <int kVectors>
HWY_INLINE void
block(const TileProduct<float>& p, const float* a, const float* b, float* c) {
  const DF df;
  VF sum[kRows][kVectors];
  load_sums(c, p.c_stride, p.add, sum);
  for (int64_t k = 0; k < p.k; ++k) {
    VF right[kVectors];
    for (int v = 0; v < kVectors; ++v)
      right[v] = hn::LoadU(df, b + k * kPanel + v * hn::Lanes(df));
    for (int row = 0; row < kRows; ++row) {
      const auto left = hn::Set(df, a[row * p.a_stride + k]);
      for (int v = 0; v < kVectors; ++v)
        sum[row][v] = hn::MulAdd(left, right[v], sum[row][v]);
    }
  }
  store_sums(sum, p.c_stride, c);
}

// A pair of bf16 in 32 bits: the even element low, the odd one high.
template <int kVectors>
HWY_INLINE void block(
    const TileProduct<uint16_t>& p,
    const uint16_t* a,
    const uint16_t* b,
    float* c) {
  const DF df;
  const DU32 du;
  const auto high = hn::Set(du, 0xffff0000U);
  VF sum[kRows][kVectors];
  load_sums(c, p.c_stride, p.add, sum);
  for (int64_t k = 0; k < p.k; k += 2) {
    VF even[kVectors];
    VF odd[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const auto pairs = hn::LoadU(
          du,
          reinterpret_cast<const uint32_t*>(
              b + k * kPanel + 2 * v * hn::Lanes(df)));
      even[v] = hn::BitCast(df, hn::ShiftLeft<16>(pairs));
      odd[v] = hn::BitCast(df, hn::And(pairs, high));
    }
    for (int row = 0; row < kRows; ++row) {
      uint32_t pair = 0;
      std::memcpy(&pair, a + row * p.a_stride + k, sizeof(pair));
      const auto both = hn::Set(du, pair);
      const auto first = hn::BitCast(df, hn::ShiftLeft<16>(both));
      const auto second = hn::BitCast(df, hn::And(both, high));
      for (int v = 0; v < kVectors; ++v) {
        sum[row][v] = hn::MulAdd(first, even[v], sum[row][v]);
        sum[row][v] = hn::MulAdd(second, odd[v], sum[row][v]);
      }
    }
  }
  store_sums(sum, p.c_stride, c);
}

template <typename T>
HWY_INLINE void product(const TileProduct<T>& p) {
  // Two vectors at a time; on the narrowest targets they are 8 columns.
  constexpr int64_t kLanes = HWY_LANES(float);
  constexpr int64_t kGroup = 4 / sizeof(T);
  for (int64_t n = 0; n < p.n;) {
    const T* b = p.b + n / kPanel * p.panel_stride + n % kPanel * kGroup;
    const bool two = p.n - n >= 2 * kLanes && n % kPanel + 2 * kLanes <= kPanel;
    for (int64_t m = 0; m < p.m; m += kRows) {
      const T* a = p.a + m * p.a_stride;
      float* c = p.c + m * p.c_stride + n;
      if (two)
        block<2>(p, a, b, c);
      else
        block<1>(p, a, b, c);
    }
    n += two ? 2 * kLanes : kLanes;
  }
}

void product_f32(const TileProduct<float>& p) {
  product(p);
}
void product_bf16(const TileProduct<uint16_t>& p) {
  product(p);
}

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

// Transposes blocks of 4 x 4 words; the rest word by word. Words are 32 bits:
// floats or pairs of bf16.
void transpose_words(
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

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(product_f32);
HWY_EXPORT(product_bf16);
HWY_EXPORT(interleave);
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
  const bool whole = n % kPanel == 0 && k == padded_k;
  if (!whole)
    std::fill_n(packed, round_up(n, kPanel) * padded_k, T(0));
}

}  // namespace

void tile_product(const TileProduct<float>& p) {
  detail::tile_product_generic(p);
}

void tile_product(const TileProduct<uint16_t>& p) {
  if (detail::has_tile_kind(detail::TileKind::kAmx))
    detail::tile_product_amx(p);
  else if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    detail::tile_product_avx512_bf16(p);
  else
    detail::tile_product_generic(p);
}

const char* tile_product_instructions() {
  if (detail::has_tile_kind(detail::TileKind::kAmx))
    return "amx";
  if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    return "avx512_bf16";
  return hwy::TargetName(hwy::SupportedTargets() & -hwy::SupportedTargets());
}

TileSession::TileSession() {
  if (detail::has_tile_kind(detail::TileKind::kAmx))
    detail::configure_amx();
}

TileSession::~TileSession() {
  if (detail::has_tile_kind(detail::TileKind::kAmx))
    detail::release_amx();
}

namespace detail {
void tile_product_generic(const TileProduct<float>& p) {
  HWY_DYNAMIC_DISPATCH(product_f32)(p);
}
void tile_product_generic(const TileProduct<uint16_t>& p) {
  HWY_DYNAMIC_DISPATCH(product_bf16)(p);
}
}  // namespace detail

void pack_rows(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed) {
  clear_panels(n, padded_k, k, packed);
  static const uint16_t zeros[kPanel] = {};
  for (int64_t column = 0; column < n; column += kPanel) {
    uint16_t* panel = packed + column * padded_k;
    const int64_t width = std::min(kPanel, n - column);
    for (int64_t row = 0; row < k; row += 2) {
      const uint16_t* even = from + row * stride + column;
      HWY_DYNAMIC_DISPATCH(interleave)
      (even, row + 1 < k ? even + stride : zeros, width, panel + row * kPanel);
    }
  }
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

// Two rows are woven into words, words are transposed.
void transpose(
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

}  // namespace brigade::ops
#endif  // HWY_ONCE
