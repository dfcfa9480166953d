// The bf16 matrix instruction of 64-bit Arm, BFMMLA, which Highway 1.0 does not
// offer: 2 x 4 times 4 x 2, sums in float32. What it reads is two lines of four
// values; a panel's pairs of two depths make it when they are woven.
#include "brigade/base/check.h"
#include "brigade/kernels/cpu/tile_product.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <sys/auxv.h>

#include <cstring>

// On each function, as no flags of the file allow these instructions.
#define BRIGADE_ARM_BF16 __attribute__((target("arch=armv8.2-a+bf16")))

namespace brigade::ops::detail {
namespace {

constexpr int kLines = 8;  // rows of a and columns of b that a block has
static_assert(kRowTile % kLines == 0 && kPanel % kLines == 0);

// kLines lines of depth 4, two in each; with a last depth of 2 the rest is 0.
struct Lines {
  bfloat16x8_t pair[kLines / 2];
};

// From a panel: the words of two depths each.
BRIGADE_ARM_BF16 inline Lines packed_lines(const uint16_t* from, bool is_last) {
  Lines lines;
#pragma GCC unroll 2
  for (int i = 0; i < kLines / 4; ++i) {
    const auto* words = reinterpret_cast<const uint32_t*>(from) + 4 * i;
    const uint32x4_t first = vld1q_u32(words);
    const uint32x4_t second =
        is_last ? vdupq_n_u32(0) : vld1q_u32(words + kPanel);
    lines.pair[2 * i] = vreinterpretq_bf16_u32(vzip1q_u32(first, second));
    lines.pair[2 * i + 1] = vreinterpretq_bf16_u32(vzip2q_u32(first, second));
  }
  return lines;
}

// Four values of a row, or two.
BRIGADE_ARM_BF16 inline uint32x2_t depth_of(
    const uint16_t* from,
    bool is_last) {
  uint32_t words[2] = {};
  std::memcpy(words, from, is_last ? 4 : 8);
  return vld1_u32(words);
}

BRIGADE_ARM_BF16 inline Lines
row_lines(const uint16_t* from, int64_t stride, bool is_last) {
  Lines lines;
#pragma GCC unroll 4
  for (int i = 0; i < kLines / 2; ++i)
    lines.pair[i] = vreinterpretq_bf16_u32(vcombine_u32(
        depth_of(from + 2 * i * stride, is_last),
        depth_of(from + (2 * i + 1) * stride, is_last)));
  return lines;
}

BRIGADE_ARM_BF16 inline void
put(float* to, bool add, float32x2_t left, float32x2_t right) {
  const float32x4_t sum = vcombine_f32(left, right);
  vst1q_f32(to, add ? vaddq_f32(vld1q_f32(to), sum) : sum);
}

// Unrolled by pragmas, or GCC 12 keeps the sums in memory.
template <bool kPackedLeft>
BRIGADE_ARM_BF16 void matrix_block(
    const TileProduct<uint16_t>& p,
    const uint16_t* a,
    const uint16_t* b,
    float* c) {
  constexpr int kPairs = kLines / 2;
  float32x4_t sum[kPairs][kPairs];
#pragma GCC unroll 4
  for (int row = 0; row < kPairs; ++row)
#pragma GCC unroll 4
    for (int column = 0; column < kPairs; ++column)
      sum[row][column] = vdupq_n_f32(0);
  for (int64_t k = 0; k < p.k; k += 4) {
    const bool is_last = p.k - k < 4;
    const Lines left = kPackedLeft ? packed_lines(a + k * kPanel, is_last)
                                   : row_lines(a + k, p.a_stride, is_last);
    const Lines right = packed_lines(b + k * kPanel, is_last);
    for (int row = 0; row < kPairs; ++row)
      for (int column = 0; column < kPairs; ++column)
        sum[row][column] =
            vbfmmlaq_f32(sum[row][column], left.pair[row], right.pair[column]);
  }
  // A sum has [row][column], [row][column + 1], then those of the next row.
#pragma GCC unroll 4
  for (int row = 0; row < kPairs; ++row) {
    float* upper = c + 2 * row * p.c_stride;
    float* lower = upper + p.c_stride;
#pragma GCC unroll 2
    for (int i = 0; i < kPairs; i += 2) {
      const float32x4_t left = sum[row][i];
      const float32x4_t right = sum[row][i + 1];
      put(upper + 2 * i, p.add, vget_low_f32(left), vget_low_f32(right));
      put(lower + 2 * i, p.add, vget_high_f32(left), vget_high_f32(right));
    }
  }
}

}  // namespace

bool has_bfmmla() {
  static const bool has = [] {
    constexpr unsigned long kBf16 = 1UL << 14;  // HWCAP2_BF16
    return (::getauxval(AT_HWCAP2) & kBf16) != 0;
  }();
  return has;
}

void tile_product_bfmmla(const TileProduct<uint16_t>& p) {
  for (int64_t n = 0; n < p.n; n += kLines) {
    const uint16_t* b = p.b + n / kPanel * p.panel_stride + n % kPanel * 2;
    for (int64_t m = 0; m < p.m; m += kLines) {
      float* c = p.c + m * p.c_stride + n;
      if (p.a_packed)
        matrix_block<true>(
            p, p.a + m / kPanel * p.a_stride + m % kPanel * 2, b, c);
      else
        matrix_block<false>(p, p.a + m * p.a_stride, b, c);
    }
  }
}

}  // namespace brigade::ops::detail

#else  // not Arm

namespace brigade::ops::detail {

bool has_bfmmla() {
  return false;
}
void tile_product_bfmmla(const TileProduct<uint16_t>&) {
  BRIGADE_ASSERT(false, "no BFMMLA on this processor");
}

}  // namespace brigade::ops::detail

#endif
