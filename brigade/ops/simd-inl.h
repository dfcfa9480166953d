// What every Highway kernel here needs: float vectors loaded from and stored to
// float32 or bf16 memory, whole or in part. Included once a target, like
// Highway's own -inl.h files.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(BRIGADE_OPS_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_OPS_SIMD_INL_H_
#undef BRIGADE_OPS_SIMD_INL_H_
#else
#define BRIGADE_OPS_SIMD_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::ScalableTag<float>;
using VF = hn::Vec<DF>;
using DU32 = hn::RebindToUnsigned<DF>;
using DU16 = hn::Rebind<uint16_t, DF>;

// bf16 is kept as uint16_t: the upper half of a float32.
HWY_INLINE VF load(DF, const float* from) {
  return hn::LoadU(DF(), from);
}
HWY_INLINE VF load(DF df, const uint16_t* from) {
  const auto wide = hn::PromoteTo(DU32(), hn::LoadU(DU16(), from));
  return hn::BitCast(df, hn::ShiftLeft<16>(wide));
}

// Round to nearest even, as PyTorch does; a NaN stays one.
HWY_INLINE auto to_bf16_bits(VF value) {
  const DU32 du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  const auto rounded =
      hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd));
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  return hn::IfThenElse(is_nan, hn::Set(du, 0x7fc0), rounded);
}

HWY_INLINE void store(VF value, DF df, float* to) {
  hn::StoreU(value, df, to);
}
HWY_INLINE void store(VF value, DF, uint16_t* to) {
#if HWY_TARGET <= HWY_AVX2
  hn::StoreU(
      hn::DemoteTo(
          DU16(), hn::BitCast(hn::RebindToSigned<DF>(), to_bf16_bits(value))),
      DU16(),
      to);
#else
  hn::StoreU(hn::TruncateTo(DU16(), to_bf16_bits(value)), DU16(), to);
#endif
}

// The first `numel` lanes, others 0; never reads past them.
#if HWY_TARGET <= HWY_AVX3
// AVX-512 masks 16-bit memory too, without a fault past the end.
HWY_INLINE VF load_part(DF df, const float* from, size_t numel) {
  return hn::MaskedLoad(hn::FirstN(df, numel), df, from);
}
HWY_INLINE VF load_part(DF df, const uint16_t* from, size_t numel) {
  const DU16 du16;
  const auto narrow = hn::MaskedLoad(hn::FirstN(du16, numel), du16, from);
  return hn::BitCast(df, hn::ShiftLeft<16>(hn::PromoteTo(DU32(), narrow)));
}
HWY_INLINE void store_part(VF value, DF df, float* to, size_t numel) {
  hn::BlendedStore(value, hn::FirstN(df, numel), df, to);
}
HWY_INLINE void store_part(VF value, DF, uint16_t* to, size_t numel) {
  const DU16 du16;
  const auto narrow = hn::DemoteTo(
      du16, hn::BitCast(hn::RebindToSigned<DF>(), to_bf16_bits(value)));
  hn::BlendedStore(narrow, hn::FirstN(du16, numel), du16, to);
}
#else
template <typename T>
HWY_INLINE VF load_part(DF df, const T* from, size_t numel) {
  HWY_ALIGN T lanes[HWY_LANES(float)] = {};
  std::memcpy(lanes, from, numel * sizeof(T));
  return load(df, lanes);
}
template <typename T>
HWY_INLINE void store_part(VF value, DF df, T* to, size_t numel) {
  HWY_ALIGN T lanes[HWY_LANES(float)];
  store(value, df, lanes);
  std::memcpy(to, lanes, numel * sizeof(T));
}
#endif

HWY_INLINE float sum_of_lanes(VF value) {
  return hn::GetLane(hn::SumOfLanes(DF(), value));
}

// Calls body(first, load, store) for [0, numel) in vectors; body's load(ptr)
// and store(value, ptr) act on the whole vector or on the rest alone.
template <typename Body>
HWY_INLINE void for_vectors(size_t numel, Body&& body) {
  const DF df;
  const size_t lanes = hn::Lanes(df);
  size_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    body(
        i,
        [&](const auto* from) HWY_ATTR { return load(df, from); },
        [&](VF value, auto* to) HWY_ATTR { store(value, df, to); });
  }
  if (i < numel) {
    const size_t rest = numel - i;
    body(
        i,
        [&](const auto* from) HWY_ATTR { return load_part(df, from, rest); },
        [&](VF value, auto* to) HWY_ATTR { store_part(value, df, to, rest); });
  }
}

// exp(x) for finite x and -infinity, relative error below 2e-7 (Cody and Waite
// reduction, degree 6 Taylor-minimax); results below 2^-126 are 0.
HWY_INLINE VF fast_exp(VF x) {
  const DF df;
  const auto clamped =
      hn::Min(hn::Max(x, hn::Set(df, -87.33654F)), hn::Set(df, 88.72283F));
  const auto n = hn::Round(hn::Mul(clamped, hn::Set(df, 1.44269504F)));
  auto r = hn::NegMulAdd(n, hn::Set(df, 0.693145751953125F), clamped);
  r = hn::NegMulAdd(n, hn::Set(df, 1.42860677e-6F), r);
  auto p = hn::Set(df, 1.3930436e-3F);
  p = hn::MulAdd(p, r, hn::Set(df, 8.3612584e-3F));
  p = hn::MulAdd(p, r, hn::Set(df, 4.1666240e-2F));
  p = hn::MulAdd(p, r, hn::Set(df, 1.6666505e-1F));
  p = hn::MulAdd(p, r, hn::Set(df, 0.5F));
  p = hn::MulAdd(hn::Mul(p, r), r, hn::Add(r, hn::Set(df, 1.0F)));
  // 2^n by its exponent bits, in two factors: n may be 128.
  const hn::RebindToSigned<DF> di;
  const auto exponent = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(exponent);
  const auto bias = hn::Set(di, 127);
  const auto first = hn::ShiftLeft<23>(hn::Add(half, bias));
  const auto second = hn::ShiftLeft<23>(hn::Add(hn::Sub(exponent, half), bias));
  const auto result =
      hn::Mul(hn::Mul(p, hn::BitCast(df, first)), hn::BitCast(df, second));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -87.33654F)), result);
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
