#include "brigade/comm/sums/block_wire.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "brigade/comm/sums/bf16_wire.h"

namespace brigade {
namespace {

constexpr int64_t kInt8Block = 256;
constexpr int64_t kInt4Block = 128;
constexpr int64_t kInt2Block = 256;
constexpr int64_t kScaleBytes = sizeof(float);
// The levels of kInt2, and the middle between them.
constexpr float kInnerLevel = 0.4528F;
constexpr float kOuterLevel = 1.510F;
constexpr float kBetweenLevels = (kInnerLevel + kOuterLevel) / 2;
constexpr uint32_t kInfinityBits = 0x7F800000;

// The bits of magnitudes compare as the magnitudes do, with NaN above all.
uint32_t largest_magnitude_bits(const float* values, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i)
    largest =
        std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7FFFFFFFU);
  return largest;
}

// The factor that turns a block's integers into values, and its inverse.
struct Scale {
  float step = 0;
  float inverse = 0;
};

Scale scale_of(const float* values, int64_t count, float levels) {
  const uint32_t bits = largest_magnitude_bits(values, count);
  if (bits >= kInfinityBits)
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  const float step = std::bit_cast<float>(bits) / levels;
  const float inverse = 1 / step;
  // Values too small to have a scale count as zeros.
  if (!(inverse <= std::numeric_limits<float>::max()))
    return {};
  return {step, inverse};
}

inline int32_t nearest(float value) {
  return static_cast<int32_t>(value + (value < 0 ? -0.5F : 0.5F));
}

inline int32_t level_of(float value, float inverse, int32_t levels) {
  return std::clamp(nearest(value * inverse), -levels, levels);
}

void encode_int8(const float* values, int64_t count, uint8_t* block) {
  const Scale scale = scale_of(values, count, 127);
  std::memcpy(block, &scale.step, kScaleBytes);
  auto* levels = reinterpret_cast<int8_t*>(block + kScaleBytes);
  std::fill_n(levels, kInt8Block, int8_t{0});
  if (scale.inverse == 0)
    return;
  for (int64_t i = 0; i < count; ++i)
    levels[i] = static_cast<int8_t>(level_of(values[i], scale.inverse, 127));
}

void decode_int8(const uint8_t* block, int64_t count, float* values) {
  float step = 0;
  std::memcpy(&step, block, kScaleBytes);
  const auto* levels = reinterpret_cast<const int8_t*>(block + kScaleBytes);
  for (int64_t i = 0; i < count; ++i)
    values[i] = step * static_cast<float>(levels[i]);
}

// Puts the first half of the block's values into the low bits.
void encode_int4(const float* values, int64_t count, uint8_t* block) {
  const Scale scale = scale_of(values, count, 7);
  std::memcpy(block, &scale.step, kScaleBytes);
  std::array<uint8_t, kInt4Block> levels{};
  if (scale.inverse != 0) {
    for (int64_t i = 0; i < count; ++i)
      levels[static_cast<size_t>(i)] =
          static_cast<uint8_t>(level_of(values[i], scale.inverse, 7) & 0xF);
  }
  for (size_t i = 0; i < kInt4Block / 2; ++i)
    block[static_cast<size_t>(kScaleBytes) + i] =
        static_cast<uint8_t>(levels[i] | (levels[i + kInt4Block / 2] << 4));
}

void decode_int4(const uint8_t* block, int64_t count, float* values) {
  float step = 0;
  std::memcpy(&step, block, kScaleBytes);
  const uint8_t* pairs = block + kScaleBytes;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t half = kInt4Block / 2;
    const int32_t bits = i < half ? pairs[i] & 0xF : pairs[i - half] >> 4;
    // Sign-extends four bits.
    values[i] = step * static_cast<float>((bits ^ 8) - 8);
  }
}

// Undefined for a NaN or an infinity. Squares in double do not overflow or
// vanish.
float root_mean_square(const float* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return static_cast<float>(std::sqrt(sum / static_cast<double>(count)));
}

// Puts each quarter of the block's values into two bits of its bytes: the sign,
// and whether the level is the outer one.
void encode_int2(const float* values, int64_t count, uint8_t* block) {
  const bool is_finite = largest_magnitude_bits(values, count) < kInfinityBits;
  const float between =
      is_finite ? kBetweenLevels * root_mean_square(values, count) : 0;
  uint8_t* bytes = block + kScaleBytes;
  std::fill_n(bytes, kInt2Block / 4, uint8_t{0});
  double along = 0;  // the values along their levels
  double square = 0;
  for (int64_t i = 0; is_finite && i < count; ++i) {
    const bool is_outer = std::abs(values[i]) > between;
    const double level = is_outer ? kOuterLevel : kInnerLevel;
    along += level * std::abs(values[i]);
    square += level * level;
    const int bits = (values[i] < 0 ? 1 : 0) | (is_outer ? 2 : 0);
    bytes[i % (kInt2Block / 4)] |=
        static_cast<uint8_t>(bits << (2 * (i / (kInt2Block / 4))));
  }
  const float scale = is_finite ? static_cast<float>(along / square)
                                : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(block, &scale, kScaleBytes);
}

void decode_int2(const uint8_t* block, int64_t count, float* values) {
  float scale = 0;
  std::memcpy(&scale, block, kScaleBytes);
  const std::array<float, 4> levels = {
      kInnerLevel * scale,
      -kInnerLevel * scale,
      kOuterLevel * scale,
      -kOuterLevel * scale};
  const uint8_t* bytes = block + kScaleBytes;
  for (int64_t i = 0; i < count; ++i)
    values[i] = levels[static_cast<size_t>(
        bytes[i % (kInt2Block / 4)] >> (2 * (i / (kInt2Block / 4))) & 3)];
}

void encode_bf16(const float* values, int64_t count, uint8_t* block) {
  auto* rounded = reinterpret_cast<uint16_t*>(block);
  narrow_to_bf16(values, rounded, count);
  std::fill(rounded + count, rounded + kInt8Block, uint16_t{0});
}

}  // namespace

int64_t block_numel(WireFormat format) {
  return format == WireFormat::kInt4 ? kInt4Block : kInt8Block;
}

int64_t block_bytes(WireFormat format) {
  switch (format) {
    case WireFormat::kFp32:
      return static_cast<int64_t>(sizeof(float)) * kInt8Block;
    case WireFormat::kBf16:
      return 2 * kInt8Block;
    case WireFormat::kInt8:
      return kScaleBytes + kInt8Block;
    case WireFormat::kInt4:
      return kScaleBytes + kInt4Block / 2;
    case WireFormat::kInt2:
      return kScaleBytes + kInt2Block / 4;
  }
  return 0;
}

void encode_block(
    WireFormat format,
    const float* values,
    int64_t count,
    uint8_t* block) {
  switch (format) {
    case WireFormat::kFp32:
      std::memcpy(block, values, static_cast<size_t>(count) * sizeof(float));
      return;
    case WireFormat::kBf16:
      return encode_bf16(values, count, block);
    case WireFormat::kInt8:
      return encode_int8(values, count, block);
    case WireFormat::kInt4:
      return encode_int4(values, count, block);
    case WireFormat::kInt2:
      return encode_int2(values, count, block);
  }
}

void decode_block(
    WireFormat format,
    const uint8_t* block,
    int64_t count,
    float* values) {
  switch (format) {
    case WireFormat::kFp32:
      std::memcpy(values, block, static_cast<size_t>(count) * sizeof(float));
      return;
    case WireFormat::kBf16:
      return widen_from_bf16(
          reinterpret_cast<const uint16_t*>(block), values, count);
    case WireFormat::kInt8:
      return decode_int8(block, count, values);
    case WireFormat::kInt4:
      return decode_int4(block, count, values);
    case WireFormat::kInt2:
      return decode_int2(block, count, values);
  }
}

}  // namespace brigade
