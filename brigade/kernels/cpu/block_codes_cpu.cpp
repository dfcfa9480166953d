#include "brigade/kernels/cpu/block_codes_kernel.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/block_codes_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

using VI32 = hn::Vec<DI32>;
using DU8 = hn::Rebind<uint8_t, DF>;

// table[index], of 256 floats.
HWY_INLINE VF look_up(const float* table, VI32 index) {
#if HWY_TARGET == HWY_AVX3
  // Highway 1.0 has no look-up in two vectors, which beats gathering.
  const auto bit = [&](int mask) HWY_ATTR {
    return _mm512_test_epi32_mask(index.raw, _mm512_set1_epi32(mask));
  };
  const auto of_32 = [&](const float* part) HWY_ATTR {
    return _mm512_permutex2var_ps(
        _mm512_load_ps(part), index.raw, _mm512_load_ps(part + 16));
  };
  const auto of_64 = [&](const float* part) HWY_ATTR {
    return _mm512_mask_blend_ps(bit(32), of_32(part), of_32(part + 32));
  };
  const auto of_128 = [&](const float* part) HWY_ATTR {
    return _mm512_mask_blend_ps(bit(64), of_64(part), of_64(part + 64));
  };
  return VF{_mm512_mask_blend_ps(bit(128), of_128(table), of_128(table + 128))};
#else
  return hn::GatherIndex(DF(), table, index);
#endif
}

// The entry of a NaN is 0, as that of all values below the lowest middle.
HWY_INLINE VI32 nearest_entry(const CodeMap& map, VF value) {
  const DF df;
  const DI32 di;
  const auto magnitude = hn::Abs(value);
  const auto line = [&](size_t decade) HWY_ATTR {
    return hn::MulAdd(
        magnitude,
        hn::Set(df, map.slopes[decade]),
        hn::Set(df, map.offsets[decade]));
  };
  const auto least = hn::Min(
      hn::Min(hn::Min(line(0), line(1)), hn::Min(line(2), line(3))),
      hn::Min(hn::Min(line(4), line(5)), line(6)));
  // Below 0 entries' numbers fall from the one of 0.
  const auto shift = hn::Set(df, kRoundingShift);
  const auto number =
      hn::Sub(hn::BitCast(di, hn::Add(least, shift)), hn::BitCast(di, shift));
  const auto from_zero =
      hn::Xor(number, hn::ShiftRight<31>(hn::BitCast(di, value)));
  const auto first = hn::IfThenElseZero(
      hn::RebindMask(di, hn::Eq(value, value)),
      hn::Max(hn::Add(from_zero, hn::Set(di, map.zero)), hn::Zero(di)));
  const auto is_above = hn::Gt(value, look_up(map.middles.data(), first));
  return hn::Sub(first, hn::VecFromMask(di, hn::RebindMask(di, is_above)));
}

float largest_magnitude(const float* values, int64_t numel) {
  const DF df;
  const DI32 di;
  auto largest = hn::Zero(di);
  // As integers NaNs are the largest.
  for_vectors(
      static_cast<size_t>(numel), [&](size_t i, auto get, auto) HWY_ATTR {
        largest = hn::Max(largest, hn::BitCast(di, hn::Abs(get(values + i))));
      });
  return hn::GetLane(hn::BitCast(df, hn::MaxOfLanes(di, largest)));
}

void encode_block(
    const CodeMap& map,
    const float* values,
    float scale,
    int64_t numel,
    uint8_t* codes) {
  const DF df;
  const DI32 di;
  const DU8 du8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto codes_of = [&](VF value) HWY_ATTR {
    const auto entry = nearest_entry(map, hn::Div(value, hn::Set(df, scale)));
    const auto code = hn::Xor(entry, hn::Set(di, map.flip));
    return hn::U8FromU32(hn::BitCast(DU32(), code));
  };
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes)
    hn::StoreU(codes_of(load(df, values + i)), du8, codes + i);
  if (i < numel) {
    const auto rest = static_cast<size_t>(numel - i);
    HWY_ALIGN uint8_t last[HWY_LANES(float)];
    hn::Store(codes_of(load_part(df, values + i, rest)), du8, last);
    std::memcpy(codes + i, last, rest);
  }
}

void decode_block(
    const CodeMap& map,
    const uint8_t* codes,
    float scale,
    int64_t numel,
    float* values) {
  const DF df;
  const DI32 di;
  const DU8 du8;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto values_of = [&](const uint8_t* from) HWY_ATTR {
    const auto code = hn::PromoteTo(di, hn::LoadU(du8, from));
    return hn::Mul(look_up(map.entries.data(), code), hn::Set(df, scale));
  };
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes)
    hn::StoreU(values_of(codes + i), df, values + i);
  if (i < numel) {
    const auto rest = static_cast<size_t>(numel - i);
    uint8_t last[HWY_LANES(float)] = {};
    std::memcpy(last, codes + i, rest);
    store_part(values_of(last), df, values + i, rest);
  }
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(largest_magnitude);
HWY_EXPORT(encode_block);
HWY_EXPORT(decode_block);
}  // namespace

CodeMap::CodeMap(const std::array<float, 256>& ascending) {
  while (ascending[static_cast<size_t>(zero)] < 0)
    ++zero;
  flip = zero == 0 ? 0 : 0x80;
  for (size_t i = 0; i < ascending.size(); ++i)
    entries[i ^ flip] = ascending[i];
  for (size_t i = 0; i + 1 < ascending.size(); ++i)
    middles[i] = (ascending[i] + ascending[i + 1]) / 2;
  middles.back() = std::numeric_limits<float>::infinity();
  // A decade's entries are the middles of equal parts of it, so that their own
  // middles are the ends of the parts: there a line, before it is lowered, is
  // the number of middles up to it. Lowered by 0.4 also for the middles of two
  // decades' entries (0.2 parts above the end), of 0 and the first entry, and
  // of the last one and 1 (a quarter of a part before the end); and by 0.5,
  // because numbers are rounded to the nearest.
  double parts = zero == 0 ? 2 : 1;
  double before = 1;
  for (size_t i = 0; i < kDecades; ++i) {
    const double end = std::pow(10.0, static_cast<int>(i) - (kDecades - 1));
    slopes[i] = static_cast<float>(parts / (0.9 * end));
    offsets[i] = static_cast<float>(before - parts * 0.1 / 0.9 - 0.9);
    before += parts;
    parts *= 2;
  }
}

float largest_magnitude_kernel(const float* values, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(largest_magnitude)(values, numel);
}
void encode_block_kernel(
    const CodeMap& map,
    const float* values,
    float scale,
    int64_t numel,
    uint8_t* codes) {
  HWY_DYNAMIC_DISPATCH(encode_block)(map, values, scale, numel, codes);
}
void decode_block_kernel(
    const CodeMap& map,
    const uint8_t* codes,
    float scale,
    int64_t numel,
    float* values) {
  HWY_DYNAMIC_DISPATCH(decode_block)(map, codes, scale, numel, values);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
