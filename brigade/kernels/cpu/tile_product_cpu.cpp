#include <cstring>

#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/tile_product_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// Rows that share a load of b: as many sums as the registers hold.
constexpr int kRows = HWY_LANES(float) >= 16 ? 8 : 4;
static_assert(kRowTile % kRows == 0 && kPanel % kRows == 0);

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
  const int64_t a_row = p.a_packed ? 1 : p.a_stride;
  const int64_t next_k = p.a_packed ? kPanel : 1;
  VF sum[kRows][kVectors];
  load_sums(c, p.c_stride, p.add, sum);
  for (int64_t k = 0; k < p.k; ++k) {
    VF right[kVectors];
    for (int v = 0; v < kVectors; ++v)
      right[v] = hn::LoadU(df, b + k * kPanel + v * hn::Lanes(df));
    for (int row = 0; row < kRows; ++row) {
      const auto left = hn::Set(df, a[row * a_row + k * next_k]);
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
  const int64_t a_row = p.a_packed ? 2 : p.a_stride;
  const int64_t next_pair = p.a_packed ? 2 * kPanel : 2;
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
      std::memcpy(&pair, a + row * a_row + k / 2 * next_pair, sizeof(pair));
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
void product(const TileProduct<T>& p) {
  // Two vectors at a time; on the narrowest targets they are 8 columns.
  constexpr int64_t kLanes = HWY_LANES(float);
  constexpr int64_t kGroup = 4 / sizeof(T);
  for (int64_t n = 0; n < p.n;) {
    const T* b = p.b + n / kPanel * p.panel_stride + n % kPanel * kGroup;
    const bool two = p.n - n >= 2 * kLanes && n % kPanel + 2 * kLanes <= kPanel;
    for (int64_t m = 0; m < p.m; m += kRows) {
      const T* a = p.a_packed
                       ? p.a + m / kPanel * p.a_stride + m % kPanel * kGroup
                       : p.a + m * p.a_stride;
      float* c = p.c + m * p.c_stride + n;
      if (two)
        block<2>(p, a, b, c);
      else
        block<1>(p, a, b, c);
    }
    n += two ? 2 * kLanes : kLanes;
  }
}

static constexpr auto& product_f32 = product<float>;
static constexpr auto& product_bf16 = product<uint16_t>;

const char* target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(product_f32);
HWY_EXPORT(product_bf16);
HWY_EXPORT(target_name);
}  // namespace

void tile_product(const TileProduct<float>& p) {
  detail::tile_product_generic(p);
}

void tile_product(const TileProduct<uint16_t>& p) {
  if (detail::has_tile_kind(detail::TileKind::kAmx))
    detail::tile_product_amx(p);
  else if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    detail::tile_product_avx512_bf16(p);
  else if (detail::has_tile_kind(detail::TileKind::kBfmmla))
    detail::tile_product_bfmmla(p);
  else
    detail::tile_product_generic(p);
}

int64_t least_depth() {
  return detail::has_tile_kind(detail::TileKind::kAmx) ? kDepth : 2;
}

bool packed_left_fits() {
  return !detail::has_tile_kind(detail::TileKind::kAmx);
}

const char* tile_product_instructions() {
  if (detail::has_tile_kind(detail::TileKind::kAmx))
    return "amx";
  if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    return "avx512_bf16";
  if (detail::has_tile_kind(detail::TileKind::kBfmmla))
    return "bfmmla";
  return HWY_DYNAMIC_DISPATCH(target_name)();
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

}  // namespace brigade::ops
#endif  // HWY_ONCE
