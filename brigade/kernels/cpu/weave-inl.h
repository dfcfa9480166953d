// Two rows of 16-bit values woven into a row of pairs. Included once a target,
// like Highway's own -inl.h files.

#include <cstdint>

#if defined(BRIGADE_OPS_WEAVE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_OPS_WEAVE_INL_H_
#undef BRIGADE_OPS_WEAVE_INL_H_
#else
#define BRIGADE_OPS_WEAVE_INL_H_
#endif

#include "brigade/kernels/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// to[2 i] = even[i], to[2 i + 1] = odd[i].
HWY_INLINE void interleave(
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

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
