#include "brigade/gguf/blocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "brigade/base/check.h"
#include "brigade/base/error.h"

namespace brigade {
namespace {

constexpr uint64_t kBlock = 32;  // of q8_0

template <typename Number>
void put(std::byte*& to, Number value) {
  std::memcpy(to, &value, sizeof value);
  to += sizeof value;
}

template <typename Number>
Number get(const std::byte*& from) {
  Number value;
  std::memcpy(&value, from, sizeof value);
  from += sizeof value;
  return value;
}

bool is_finite_float16(uint16_t bits) {
  return (bits & 0x7C00) != 0x7C00;
}

// The scale is rounded to float16 for storage only.
uint16_t encode_block(std::span<const float> values, std::byte*& to) {
  float largest = 0;
  for (const float value : values)
    largest = std::max(largest, std::abs(value));
  const float scale = largest / 127.0F;
  const float inverse = scale == 0 ? 0.0F : 1.0F / scale;
  const uint16_t scale_bits = float16_bits(scale);
  put(to, scale_bits);
  for (const float value : values)
    put(to, static_cast<int8_t>(std::round(value * inverse)));
  return scale_bits;
}

}  // namespace

uint16_t float16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000)
    return sign | 0x7E00;  // NaN
  if (magnitude >= 0x47800000)
    return sign | 0x7C00;  // 2^16 and above
  if (magnitude < 0x38800000) {
    // Below 2^-14 float16 counts in steps of 2^-24.
    const float steps = std::bit_cast<float>(magnitude) * 0x1p24F;
    return sign | static_cast<uint16_t>(std::nearbyint(steps));
  }
  // Bias 127 becomes 15; a carry out of the mantissa raises the exponent.
  const uint32_t rebiased = magnitude - (112U << 23);
  const uint32_t half = 0x0FFF + (rebiased >> 13 & 1);
  return sign | static_cast<uint16_t>((rebiased + half) >> 13);
}

float float_of_float16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1F;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 0x1F)
    return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t bfloat16_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000)
    return static_cast<uint16_t>(bits >> 16 | 0x40);  // NaN
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

float float_of_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

std::vector<std::byte> encode_gguf(
    std::span<const float> values,
    GgufType type,
    const std::string& name) {
  const uint64_t step = block_numel(type);
  BRIGADE_ASSERT(values.size() % step == 0, "{} of {}", values.size(), step);
  std::vector<std::byte> data(values.size() / step * block_bytes(type));
  if (type == GgufType::kF32) {
    std::memcpy(data.data(), values.data(), data.size());
    return data;
  }
  std::byte* to = data.data();
  for (size_t at = 0; at < values.size(); at += step) {
    bool fits = true;
    if (type == GgufType::kQ8_0) {
      fits = is_finite_float16(encode_block(values.subspan(at, kBlock), to));
    } else if (type == GgufType::kF16) {
      const uint16_t bits = float16_bits(values[at]);
      fits = is_finite_float16(bits);
      put(to, bits);
    } else {
      put(to, bfloat16_bits(values[at]));
    }
    if (!fits) {
      throw DataError(fmt::format(
          "[gguf] '{}' holds {} at element {}, which is too large for {}; use "
          "bf16 or f32",
          name,
          values[at],
          at,
          name_of(type)));
    }
  }
  return data;
}

void decode_gguf(
    std::span<const std::byte> data,
    GgufType type,
    std::span<float> values) {
  const uint64_t step = block_numel(type);
  BRIGADE_ASSERT(
      values.size() % step == 0 &&
          data.size() == values.size() / step * block_bytes(type),
      "{} bytes of {} values",
      data.size(),
      values.size());
  const std::byte* from = data.data();
  switch (type) {
    case GgufType::kF32:
      std::memcpy(values.data(), data.data(), data.size());
      break;
    case GgufType::kF16:
      for (float& value : values)
        value = float_of_float16(get<uint16_t>(from));
      break;
    case GgufType::kBF16:
      for (float& value : values)
        value = float_of_bfloat16(get<uint16_t>(from));
      break;
    case GgufType::kQ8_0:
      for (size_t at = 0; at < values.size(); at += kBlock) {
        const float scale = float_of_float16(get<uint16_t>(from));
        for (float& value : values.subspan(at, kBlock))
          value = scale * static_cast<float>(get<int8_t>(from));
      }
      break;
  }
}

}  // namespace brigade
