#include "brigade/kernels/cpu/stochastic_rounding_kernel.h"

#include <cstring>

#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/stochastic_rounding_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

using VU32 = hn::Vec<DU32>;

HWY_INLINE VU32 mix(VU32 x) {
  const DU32 du;
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x7feb352dU));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(du, 0x846ca68bU));
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

// The upper 16 bits of random_word() of neighbours.
HWY_INLINE VU32 bits_from(uint64_t key, uint64_t place) {
  const DU32 du;
  const auto first = hn::Set(du, static_cast<uint32_t>(place));
  const auto low = hn::Add(first, hn::Iota(du, 0));
  const auto has_wrapped = hn::VecFromMask(du, hn::Lt(low, first));
  const auto high = hn::Sub(
      hn::Set(
          du,
          static_cast<uint32_t>(place >> 32) +
              static_cast<uint32_t>(key >> 32)),
      has_wrapped);
  const auto low_key = hn::Set(du, static_cast<uint32_t>(key));
  return hn::ShiftRight<16>(mix(hn::Add(mix(hn::Add(low, low_key)), high)));
}

// The bf16 values, in lower halves.
HWY_INLINE VU32 round_by(VF value, VU32 random) {
  const DU32 du;
  const auto exponent = hn::Set(du, 0x7f800000U);
  const auto bits = hn::BitCast(du, value);
  const auto sum = hn::Add(bits, random);
  const auto is_infinite = [&](VU32 of) HWY_ATTR {
    return hn::Eq(hn::And(of, exponent), exponent);
  };
  // What is not finite stays: its exponent is that of an infinity already.
  const auto rounded = hn::IfThenElse(is_infinite(sum), bits, sum);
  return hn::IfThenElse(
      hn::RebindMask(du, hn::IsNaN(value)),
      hn::Set(du, 0x7fc0),
      hn::ShiftRight<16>(rounded));
}

void round_stochastically(
    const float* values,
    int64_t numel,
    uint64_t key,
    uint64_t place,
    uint16_t* rounded) {
  const DF df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto random = [&](int64_t i) HWY_ATTR {
    return bits_from(key, place + static_cast<uint64_t>(i));
  };
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes)
    store_low_halves(round_by(load(df, values + i), random(i)), rounded + i);
  if (i < numel) {
    const auto rest = static_cast<size_t>(numel - i);
    HWY_ALIGN uint16_t last[HWY_LANES(float)];
    store_low_halves(
        round_by(load_part(df, values + i, rest), random(i)), last);
    std::memcpy(rounded + i, last, rest * sizeof(uint16_t));
  }
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(round_stochastically);
}  // namespace

void stochastic_rounding_kernel(
    const float* values,
    int64_t numel,
    uint64_t key,
    uint64_t place,
    uint16_t* rounded) {
  HWY_DYNAMIC_DISPATCH(round_stochastically)
  (values, numel, key, place, rounded);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
