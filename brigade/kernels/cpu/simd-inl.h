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
using DI32 = hn::RebindToSigned<DF>;
using DU16 = hn::Rebind<uint16_t, DF>;

// bf16 is kept as uint16_t: the upper half of a float32.
HWY_INLINE VF load(DF, const float* from) {
  return hn::LoadU(DF(), from);
}
HWY_INLINE VF load(DF df, const uint16_t* from) {
  const auto wide = hn::PromoteTo(DU32(), hn::LoadU(DU16(), from));
  return hn::BitCast(df, hn::ShiftLeft<16>(wide));
}

// Round to nearest even, as PyTorch does. The bf16 in the upper halves,
// anything in the lower ones; for results of arithmetic, whose NaNs survive the
// addition.
HWY_INLINE auto round_to_bf16(VF value) {
  const DU32 du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
  return hn::Add(hn::Add(bits, hn::Set(du, 0x7fff)), odd);
}
// The same of any value, in the lower halves; every NaN stays one.
HWY_INLINE auto to_bf16_bits(VF value) {
  const DU32 du;
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(value));
  return hn::IfThenElse(
      is_nan, hn::Set(du, 0x7fc0), hn::ShiftRight<16>(round_to_bf16(value)));
}

HWY_INLINE void store_low_halves(hn::Vec<DU32> bits, uint16_t* to) {
#if HWY_TARGET == HWY_AVX2  // where truncation takes more instructions
  hn::StoreU(hn::DemoteTo(DU16(), hn::BitCast(DI32(), bits)), DU16(), to);
#else
  hn::StoreU(hn::TruncateTo(DU16(), bits), DU16(), to);
#endif
}

// Rounds results of arithmetic in two rows: as rows, and as pairs, the first
// row's in the lower halves.
HWY_INLINE void store_bf16_pair(
    VF first,
    VF second,
    uint16_t* first_row,
    uint16_t* second_row,
    uint32_t* pairs) {
  const DU32 du;
  const auto low = hn::ShiftRight<16>(round_to_bf16(first));
  const auto rounded = round_to_bf16(second);
  store_low_halves(low, first_row);
  store_low_halves(hn::ShiftRight<16>(rounded), second_row);
  hn::StoreU(
      hn::Or(low, hn::And(rounded, hn::Set(du, 0xffff0000U))), du, pairs);
}

HWY_INLINE void store(VF value, DF df, float* to) {
  hn::StoreU(value, df, to);
}
HWY_INLINE void store(VF value, DF, uint16_t* to) {
  store_low_halves(to_bf16_bits(value), to);
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
  const auto narrow =
      hn::DemoteTo(du16, hn::BitCast(DI32(), to_bf16_bits(value)));
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

// 2^(n + r), the integer n = shifted - kRoundingShift, |r| <= 1/2; relative
// error 1.5e-7. 2^r is a minimax polynomial (Remez), n is added to its
// exponent. Adding 1.5 * 2^23 rounds to an integer and leaves it in the lowest
// bits.
constexpr float kRoundingShift = 12582912.0F;
HWY_INLINE VF exp2_of_parts(VF shifted, VF r) {
  const DF df;
  const DI32 di;
  auto p = hn::Set(df, 1.3276472e-3F);
  p = hn::MulAdd(p, r, hn::Set(df, 9.6755410e-3F));
  p = hn::MulAdd(p, r, hn::Set(df, 5.5507131e-2F));
  p = hn::MulAdd(p, r, hn::Set(df, 2.4022120e-1F));
  p = hn::MulAdd(p, r, hn::Set(df, 6.9314694e-1F));
  p = hn::MulAdd(p, r, hn::Set(df, 1.0F));
  return hn::BitCast(
      df,
      hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
}

constexpr float kLog2E = 1.44269504F;

// x within a bound; a NaN stays one. Where one operand is a NaN, Min and Max of
// x86 return the second operand, those of other processors the number.
HWY_INLINE VF at_most(VF bound, VF x) {
#if HWY_ARCH_X86 && HWY_TARGET < HWY_EMU128
  return hn::Min(bound, x);
#else
  return hn::IfThenElse(hn::Gt(x, bound), bound, x);
#endif
}
HWY_INLINE VF at_least(VF bound, VF x) {
#if HWY_ARCH_X86 && HWY_TARGET < HWY_EMU128
  return hn::Max(bound, x);
#else
  return hn::IfThenElse(hn::Lt(x, bound), bound, x);
#endif
}

// exp(x), relative error below 3e-7; results below 2^-126 are 0. A NaN stays
// one here and below.
HWY_INLINE VF fast_exp(VF x) {
  const DF df;
  const auto log2e = hn::Set(df, kLog2E);
  const auto bounded = at_most(hn::Set(df, 88.72283F), x);
  const auto shift = hn::Set(df, kRoundingShift);
  const auto shifted = hn::MulAdd(bounded, log2e, shift);
  auto r = hn::MulSub(bounded, log2e, hn::Sub(shifted, shift));
  // What log2(e) has beyond a float.
  r = hn::MulAdd(bounded, hn::Set(df, 1.925963e-8F), r);
  return hn::IfThenZeroElse(
      hn::Lt(x, hn::Set(df, -87.33654F)), exp2_of_parts(shifted, r));
}

// 2^x for x < 128; results below 2^-126 are 2^-126. Half the work of
// fast_exp().
HWY_INLINE VF fast_exp2(VF x) {
  const DF df;
  const auto shift = hn::Set(df, kRoundingShift);
  const auto bounded = at_least(hn::Set(df, -126.0F), x);
  const auto shifted = hn::Add(bounded, shift);
  return exp2_of_parts(shifted, hn::Sub(bounded, hn::Sub(shifted, shift)));
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
// Defines the function template kernel(const Parameters<T>&, int64_t begin,
// int64_t end) for float and uint16_t: it calls simd_f32 or simd_bf16 of the
// processor's best target. A macro, because Highway makes a table's name of the
// function's.
#define BRIGADE_EXPORT_KERNEL(kernel, Parameters, simd)             \
  HWY_EXPORT(simd##_f32);                                           \
  HWY_EXPORT(simd##_bf16);                                          \
  template <typename T>                                             \
  void kernel(const Parameters<T>& p, int64_t begin, int64_t end) { \
    if constexpr (sizeof(T) == sizeof(float))                       \
      HWY_DYNAMIC_DISPATCH(simd##_f32)(p, begin, end);              \
    else                                                            \
      HWY_DYNAMIC_DISPATCH(simd##_bf16)(p, begin, end);             \
  }                                                                 \
  template void kernel(const Parameters<float>&, int64_t, int64_t); \
  template void kernel(const Parameters<uint16_t>&, int64_t, int64_t)
#endif  // HWY_ONCE

#endif  // per target
