// float32 rows, scaled, added to and rounded to bf16.
#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/rounding_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

void round_row_simd(const float* from, int64_t numel, uint16_t* to) {
  for_vectors(
      static_cast<size_t>(numel), [&](size_t i, auto get, auto put) HWY_ATTR {
        put(get(from + i), to + i);
      });
}

void round_scaled_sum_simd(const ScaledSum& sum, int64_t numel, uint16_t* to) {
  const DF df;
  const auto alpha = hn::Set(df, sum.alpha);
  const auto beta = hn::Set(df, sum.beta);
  for_vectors(
      static_cast<size_t>(numel), [&](size_t i, auto get, auto put) HWY_ATTR {
        put(hn::MulAdd(alpha, get(sum.a + i), hn::Mul(beta, get(sum.b + i))),
            to + i);
      });
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(round_row_simd);
HWY_EXPORT(round_scaled_sum_simd);
}  // namespace

void round_row(const float* from, int64_t numel, uint16_t* to) {
  if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    return detail::round_row_avx512_bf16(from, numel, to);
  HWY_DYNAMIC_DISPATCH(round_row_simd)(from, numel, to);
}

void round_scaled_sum(const ScaledSum& sum, int64_t numel, uint16_t* to) {
  if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    return detail::round_scaled_sum_avx512_bf16(sum, numel, to);
  HWY_DYNAMIC_DISPATCH(round_scaled_sum_simd)(sum, numel, to);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
