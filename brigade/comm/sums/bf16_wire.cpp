#include "brigade/comm/sums/bf16_wire.h"

#include <algorithm>
#include <bit>

// Plain loops that the compiler vectorises, once for each instruction set; not
// with sanitizers, whose run time is not ready yet when a variant is chosen.
#if defined(__x86_64__) && defined(__gnu_linux__) &&                   \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define BRIGADE_FOR_EACH_TARGET \
  __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define BRIGADE_FOR_EACH_TARGET
#endif

namespace brigade {
namespace {

// A block stays in the first-level cache.
constexpr int64_t kBlockElements = 2048;

inline float widened(uint16_t value) {
  return std::bit_cast<float>(uint32_t{value} << 16);
}

inline uint16_t narrowed(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40;
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>(is_nan ? nan : rounded);
}

}  // namespace

BRIGADE_FOR_EACH_TARGET
void narrow_to_bf16(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = narrowed(from[i]);
}

BRIGADE_FOR_EACH_TARGET
void widen_from_bf16(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = widened(from[i]);
}

BRIGADE_FOR_EACH_TARGET
void add_bf16(
    uint16_t* sum,
    const uint16_t* a,
    const uint16_t* b,
    int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    sum[i] = narrowed(widened(a[i]) + widened(b[i]));
}

BRIGADE_FOR_EACH_TARGET
void add_bf16_rows(
    float* sum,
    uint16_t* rounded,
    const Bf16Rows& rows,
    int64_t count) {
  for (int64_t begin = 0; begin < count; begin += kBlockElements) {
    const int64_t size = std::min(kBlockElements, count - begin);
    float* block = sum + begin;
    for (int64_t row = 0; row < rows.count; ++row) {
      const uint16_t* values = rows.first + row * rows.stride + begin;
      for (int64_t i = 0; i < size; ++i)
        block[i] += widened(values[i]);
    }
    uint16_t* result = rounded + begin;
    for (int64_t i = 0; i < size; ++i) {
      result[i] = narrowed(block[i]);
      block[i] = widened(result[i]);
    }
  }
}

}  // namespace brigade
