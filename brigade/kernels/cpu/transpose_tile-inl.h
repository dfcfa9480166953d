// Tiles of 16 x 16 words transposed in registers, on targets that have 32
// registers of 64 bytes: BRIGADE_TRANSPOSES_TILES is 1 there. Included once a
// target, like Highway's own -inl.h files.

#include <cstdint>

#if defined(BRIGADE_OPS_TRANSPOSE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BRIGADE_OPS_TRANSPOSE_TILE_INL_H_
#undef BRIGADE_OPS_TRANSPOSE_TILE_INL_H_
#else
#define BRIGADE_OPS_TRANSPOSE_TILE_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

#undef BRIGADE_TRANSPOSES_TILES  // once a target
#if HWY_TARGET <= HWY_AVX3
#define BRIGADE_TRANSPOSES_TILES 1

// Transposes 16 rows of 16 words and stores them, rows to_stride words apart.
HWY_INLINE void
store_transposed(__m512i (&a)[16], uint32_t* to, int64_t to_stride) {
  __m512i b[16];
  // Within 128 bits: words, then pairs of words.
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
    a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
    a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
    a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
  }
  // a[4 i + j]: of rows 4 i to 4 i + 3, columns j, 4 + j, 8 + j and 12 + j.
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0x44);
    const __m512i high01 = _mm512_shuffle_i32x4(a[j], a[4 + j], 0xee);
    const __m512i low23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0x44);
    const __m512i high23 = _mm512_shuffle_i32x4(a[8 + j], a[12 + j], 0xee);
    const auto put = [&](int column, __m512i value) HWY_ATTR {
      _mm512_storeu_si512(to + column * to_stride, value);
    };
    put(j, _mm512_shuffle_i32x4(low01, low23, 0x88));
    put(4 + j, _mm512_shuffle_i32x4(low01, low23, 0xdd));
    put(8 + j, _mm512_shuffle_i32x4(high01, high23, 0x88));
    put(12 + j, _mm512_shuffle_i32x4(high01, high23, 0xdd));
  }
}

HWY_INLINE void transpose_word_tile(
    const uint32_t* from,
    int64_t from_stride,
    uint32_t* to,
    int64_t to_stride) {
  __m512i rows[16];
  for (int i = 0; i < 16; ++i)
    rows[i] = _mm512_loadu_si512(from + i * from_stride);
  store_transposed(rows, to, to_stride);
}

// 32 rows by 16 columns of 16 bits: two rows woven into a row of words.
HWY_INLINE void transpose_tile(
    const uint16_t* from,
    int64_t from_stride,
    uint16_t* to,
    int64_t to_stride) {
  __m512i rows[16];
  const auto row = [&](int i) HWY_ATTR {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(from + i * from_stride)));
  };
  for (int i = 0; i < 16; ++i)
    rows[i] =
        _mm512_or_si512(row(2 * i), _mm512_slli_epi32(row(2 * i + 1), 16));
  store_transposed(rows, reinterpret_cast<uint32_t*>(to), to_stride / 2);
}
#else
#define BRIGADE_TRANSPOSES_TILES 0
#endif

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per target
