// float32 rows rounded to bf16.
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

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(round_row_simd);
}  // namespace

void round_row(const float* from, int64_t numel, uint16_t* to) {
  if (detail::has_tile_kind(detail::TileKind::kAvx512Bf16))
    return detail::round_row_avx512_bf16(from, numel, to);
  HWY_DYNAMIC_DISPATCH(round_row_simd)(from, numel, to);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
