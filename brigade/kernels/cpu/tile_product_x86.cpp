// The bf16 dot-product instructions of x86, which Highway 1.0 does not offer:
// AMX tiles (16 rows of 64 bytes) and AVX512-BF16. Each function carries its
// own target, so that the file needs no special flags; has_tile_kind() says no
// to them on other processors, and where Highway must not use AVX-512.
#include "brigade/base/check.h"
#include "brigade/kernels/cpu/tile_product.h"

#if defined(__x86_64__)

#include <cpuid.h>
// GCC 12 takes its own header's undefined vectors for a mistake (GCC's 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "brigade/kernels/cpu/simd_targets.h"
// After simd_targets.h.
#include "hwy/targets.h"

namespace brigade::ops::detail {
namespace {

// Linux gives a process the tile registers on demand (arch_prctl(2)).
bool amx_permitted() {
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool cpu_has_amx_bf16() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0)
    return false;
  constexpr unsigned kAmxBf16 = 1U << 22;
  constexpr unsigned kAmxTile = 1U << 24;
  return (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

bool cpu_has_avx512_bf16() {
  return __builtin_cpu_supports("avx512f") != 0 &&
         __builtin_cpu_supports("avx512bf16") != 0;
}

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes_per_row[16] = {};
  uint8_t rows[16] = {};
};

// Asks for a stretch of memory, a share of its lines at each of `calls` calls.
class FetchAhead {
 public:
  FetchAhead(const Soon& soon, int64_t calls)
      : next_(static_cast<const char*>(soon.data)),
        level_(soon.level),
        lines_((soon.bytes + kLine - 1) / kLine),
        share_(calls == 0 ? 0 : (lines_ + calls - 1) / calls) {}
  void fetch_share() {
    const int64_t lines = std::min(share_, lines_);
    for (int64_t line = 0; line < lines; ++line) {
      if (level_ == CacheLevel::kFirst)
        _mm_prefetch(next_ + line * kLine, _MM_HINT_T0);
      else
        _mm_prefetch(next_ + line * kLine, _MM_HINT_T1);
    }
    next_ += lines * kLine;
    lines_ -= lines;
  }

 private:
  static constexpr int64_t kLine = 64;
  const char* next_;
  CacheLevel level_;
  int64_t lines_;  // left
  int64_t share_;
};

// Tiles 0-3 are sums, 4-5 rows of a, 6-7 columns of b. One 32 x 32 block.
__attribute__((target("amx-tile,amx-bf16"))) void block_32x32(
    const TileProduct<uint16_t>& p,
    const uint16_t* a,
    const uint16_t* b,
    float* c,
    FetchAhead& ahead) {
  const int64_t c_bytes = p.c_stride * 4;
  const int64_t a_bytes = p.a_stride * 2;
  constexpr int64_t kBBytes = kPanel * 4;
  float* lower = c + 16 * p.c_stride;
  if (p.add) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, lower, c_bytes);
    _tile_loadd(3, lower + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < p.k; k += kDepth) {
    const uint16_t* panel = b + k * kPanel;
    ahead.fetch_share();
    _tile_loadd(4, a + k, a_bytes);
    _tile_loadd(6, panel, kBBytes);
    _tile_loadd(7, panel + 32, kBBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + 16 * p.a_stride + k, a_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, lower, c_bytes);
  _tile_stored(3, lower + 16, c_bytes);
}

__attribute__((target("amx-tile,amx-bf16"))) void block_16x16(
    const TileProduct<uint16_t>& p,
    const uint16_t* a,
    const uint16_t* b,
    float* c) {
  if (p.add)
    _tile_loadd(0, c, p.c_stride * 4);
  else
    _tile_zero(0);
  for (int64_t k = 0; k < p.k; k += kDepth) {
    _tile_loadd(4, a + k, p.a_stride * 2);
    _tile_loadd(6, b + k * kPanel, kPanel * 4);
    _tile_dpbf16ps(0, 4, 6);
  }
  _tile_stored(0, c, p.c_stride * 4);
}

constexpr int kDotRows = 8;
static_assert(kRowTile % kDotRows == 0 && kPanel % kDotRows == 0);

// kDotRows x 32 (or 16) by dot products of pairs: a pair of a broadcast,
// sixteen pairs of b. Asks for the lines of the sums that the next block adds
// to, if there is one. (A function that did nothing else would be dropped by
// GCC 12, for which it has no effect.) Sums are added to at the end: their
// first products would have to wait for what is far. Unrolled by pragmas, or
// GCC 12 moves the sums to memory and back around the loop.
template <int kVectors, bool kPackedLeft, bool kAdd>
__attribute__((target("avx512f,avx512bf16"))) void dot_block(
    const TileProduct<uint16_t>& p,
    const uint16_t* a,
    const uint16_t* b,
    float* c,
    const float* next) {
  const int64_t depth = p.k;
  const int64_t stride = p.c_stride;
  const int64_t a_row = kPackedLeft ? 2 : p.a_stride;
  constexpr int64_t kNextPair = kPackedLeft ? 2 * kPanel : 2;
  __m512 sum[kDotRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kDotRows; ++row) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      sum[row][v] = _mm512_setzero_ps();
      if (kAdd && next != nullptr)
        _mm_prefetch(next + row * stride + v * 16, _MM_HINT_T0);
    }
  }
  for (int64_t k = 0; k < depth; k += 2) {
    __m512bh right[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v)
      right[v] = reinterpret_cast<__m512bh>(
          _mm512_loadu_si512(b + k * kPanel + v * 32));
#pragma GCC unroll 8
    for (int row = 0; row < kDotRows; ++row) {
      int pair = 0;
      std::memcpy(&pair, a + row * a_row + k / 2 * kNextPair, sizeof(pair));
      const auto left = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v)
        sum[row][v] = _mm512_dpbf16_ps(sum[row][v], left, right[v]);
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kDotRows; ++row) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* to = c + row * stride + v * 16;
      if (kAdd)
        sum[row][v] = _mm512_add_ps(sum[row][v], _mm512_loadu_ps(to));
      _mm512_storeu_ps(to, sum[row][v]);
    }
  }
}

// Below this depth the sums of a product are few enough to be in cache.
constexpr int64_t kFetchDepth = 128;

template <bool kPackedLeft, bool kAdd>
void product_by_dots(const TileProduct<uint16_t>& p) {
  const bool fetches = kAdd && p.k >= kFetchDepth;
  FetchAhead ahead(
      p.soon, (p.n + kPanel - 1) / kPanel * ((p.m + kDotRows - 1) / kDotRows));
  for (int64_t n = 0; n < p.n; n += kPanel) {
    const uint16_t* b = p.b + n / kPanel * p.panel_stride;
    const bool wide = p.n - n >= kPanel;
    for (int64_t m = 0; m < p.m; m += kDotRows) {
      const uint16_t* a = kPackedLeft
                              ? p.a + m / kPanel * p.a_stride + m % kPanel * 2
                              : p.a + m * p.a_stride;
      float* c = p.c + m * p.c_stride + n;
      const float* next = nullptr;
      if (fetches && m + kDotRows < p.m)
        next = c + kDotRows * p.c_stride;
      else if (fetches && n + kPanel < p.n)
        next = p.c + n + kPanel;
      ahead.fetch_share();
      if (wide)
        dot_block<2, kPackedLeft, kAdd>(p, a, b, c, next);
      else
        dot_block<1, kPackedLeft, kAdd>(p, a, b, c, next);
    }
  }
}

template <bool kPackedLeft>
void product_by_dots(const TileProduct<uint16_t>& p) {
  if (p.add)
    product_by_dots<kPackedLeft, true>(p);
  else
    product_by_dots<kPackedLeft, false>(p);
}

}  // namespace

bool has_tile_kind(TileKind kind) {
  struct Kinds {
    bool amx, avx512_bf16;
  };
  static const Kinds has = [] {
    if ((hwy::SupportedTargets() & HWY_AVX3) == 0)
      return Kinds{false, false};
    return Kinds{cpu_has_amx_bf16() && amx_permitted(), cpu_has_avx512_bf16()};
  }();
  switch (kind) {
    case TileKind::kGeneric:
      return true;
    case TileKind::kAvx512Bf16:
      return has.avx512_bf16;
    case TileKind::kAmx:
      return has.amx;
    case TileKind::kBfmmla:
      return false;
  }
  return false;
}

__attribute__((target("amx-tile"))) void configure_amx() {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.bytes_per_row[tile] = 64;
    config.rows[tile] = 16;
  }
  // GCC's intrinsic names 8 of the 64 bytes as read: keep all stores.
  asm volatile("" : : "r"(&config) : "memory");
  _tile_loadconfig(&config);
}

__attribute__((target("amx-tile"))) void release_amx() {
  _tile_release();
}

void tile_product_amx(const TileProduct<uint16_t>& p) {
  BRIGADE_ASSERT(!p.a_packed, "AMX reads rows of the left operand");
  // Rows of a that stay in the first-level cache while the panels pass by.
  constexpr int64_t kCachedNumel = 12 * 1024;
  const int64_t rows = std::max<int64_t>(32, kCachedNumel / p.k / 32 * 32);
  FetchAhead ahead(p.soon, (p.m / 32) * (p.n / kPanel) * (p.k / kDepth));
  for (int64_t first = 0; first < p.m; first += rows) {
    const int64_t end = std::min(p.m, first + rows);
    for (int64_t n = 0; n < p.n; n += kPanel) {
      const uint16_t* b = p.b + n / kPanel * p.panel_stride;
      const bool wide = p.n - n >= kPanel;
      for (int64_t m = first; m < end;) {
        const uint16_t* a = p.a + m * p.a_stride;
        float* c = p.c + m * p.c_stride + n;
        if (wide && end - m >= 32) {
          block_32x32(p, a, b, c, ahead);
          m += 32;
          continue;
        }
        block_16x16(p, a, b, c);
        if (wide)
          block_16x16(p, a, b + 32, c + 16);
        m += 16;
      }
    }
  }
}

void tile_product_avx512_bf16(const TileProduct<uint16_t>& p) {
  if (p.a_packed)
    product_by_dots<true>(p);
  else
    product_by_dots<false>(p);
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void
round_row_avx512_bf16(const float* from, int64_t numel, uint16_t* to) {
  int64_t i = 0;
  for (; i + 32 <= numel; i += 32) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(
        _mm512_loadu_ps(from + i + 16), _mm512_loadu_ps(from + i));
    _mm512_storeu_si512(to + i, reinterpret_cast<__m512i>(rounded));
  }
  for (; i < numel; i += 16) {
    const int64_t left = std::min<int64_t>(16, numel - i);
    const auto lanes = static_cast<__mmask16>((1U << left) - 1);
    const __m256bh rounded =
        _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(lanes, from + i));
    _mm256_mask_storeu_epi16(to + i, lanes, reinterpret_cast<__m256i>(rounded));
  }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void
round_scaled_sum_avx512_bf16(
    const ScaledSum& sum,
    int64_t numel,
    uint16_t* to) {
  const __m512 alpha = _mm512_set1_ps(sum.alpha);
  const __m512 beta = _mm512_set1_ps(sum.beta);
  for (int64_t i = 0; i < numel; i += 16) {
    const int64_t left = std::min<int64_t>(16, numel - i);
    const auto lanes = static_cast<__mmask16>((1U << left) - 1);
    const __m512 b = _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, sum.b + i)), 16));
    const __m512 value = _mm512_fmadd_ps(
        alpha, _mm512_maskz_loadu_ps(lanes, sum.a + i), _mm512_mul_ps(beta, b));
    _mm256_mask_storeu_epi16(
        to + i, lanes, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value)));
  }
}

}  // namespace brigade::ops::detail

#else  // not x86

namespace brigade::ops::detail {

bool has_tile_kind(TileKind kind) {
  return kind == TileKind::kGeneric ||
         (kind == TileKind::kBfmmla && has_bfmmla());
}
void configure_amx() {}
void release_amx() {}
void tile_product_amx(const TileProduct<uint16_t>&) {
  BRIGADE_ASSERT(false, "no AMX on this processor");
}
void round_row_avx512_bf16(const float*, int64_t, uint16_t*) {
  BRIGADE_ASSERT(false, "no AVX512-BF16 on this processor");
}
void round_scaled_sum_avx512_bf16(const ScaledSum&, int64_t, uint16_t*) {
  BRIGADE_ASSERT(false, "no AVX512-BF16 on this processor");
}
void tile_product_avx512_bf16(const TileProduct<uint16_t>&) {
  BRIGADE_ASSERT(false, "no AVX512-BF16 on this processor");
}

}  // namespace brigade::ops::detail

#endif
