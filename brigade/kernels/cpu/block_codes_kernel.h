// The CPU kernels of ops/block_codes.h: one block on the calling thread.
#pragma once

#include <array>
#include <cstdint>

namespace brigade::ops {

// A map of 256 ascending entries as the kernels read it. The entry nearest to a
// value has as many middles of two entries below it as that value has. How many
// is nearly a linear function of the magnitude in each decade, and the steeper
// the nearer to 0: the least of all decades' lines is that number or one less,
// so that one comparison is left.
struct CodeMap {
  static constexpr int kDecades = 7;
  explicit CodeMap(const std::array<float, 256>& ascending);

  alignas(64) std::array<float, 256> entries{};  // by their codes
  alignas(64) std::array<float, 256> middles{};  // of an entry and the next one
  std::array<float, kDecades> slopes{};
  std::array<float, kDecades> offsets{};
  int32_t zero = 0;  // the entry that is 0
  uint8_t flip = 0;  // bits in which a code differs from its entry's number
};

// The largest magnitude; a NaN counts as the largest.
float largest_magnitude_kernel(const float* values, int64_t numel);

// Codes of values / scale, which are not above 1 in magnitude, or NaN.
void encode_block_kernel(
    const CodeMap& map,
    const float* values,
    float scale,
    int64_t numel,
    uint8_t* codes);

void decode_block_kernel(
    const CodeMap& map,
    const uint8_t* codes,
    float scale,
    int64_t numel,
    float* values);

}  // namespace brigade::ops
