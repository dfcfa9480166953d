// Right operands in the order in which tile_product() reads them.
#include <algorithm>
#include <cstring>

#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/kernels/cpu/tile_product.h"
#include "brigade/kernels/cpu/transpose_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/tile_packing_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/weave-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// The rows of pack_rows(), a few at a time through all panels: whole cache
// lines of `from` are read once.
void pack_row_pairs(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed) {
  constexpr int64_t kRowsAtOnce = 16;
  static const uint16_t zeros[kPanel] = {};
  for (int64_t first = 0; first < k; first += kRowsAtOnce) {
    const int64_t end = std::min(k, first + kRowsAtOnce);
    for (int64_t column = 0; column < n; column += kPanel) {
      uint16_t* panel = packed + column * padded_k;
      const int64_t width = std::min(kPanel, n - column);
      for (int64_t row = first; row < end; row += 2) {
        const uint16_t* even = from + row * stride + column;
        interleave(
            even,
            row + 1 < k ? even + stride : zeros,
            width,
            panel + row * kPanel);
      }
    }
  }
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
namespace {
HWY_EXPORT(pack_row_pairs);

// The part of a panel beyond n columns, or beyond k rows, is 0.
template <typename T>
void clear_panels(int64_t n, int64_t padded_k, int64_t k, T* packed) {
  const int64_t whole = k == padded_k ? n / kPanel * kPanel : 0;
  std::fill_n(
      packed + whole * padded_k,
      (round_up(n, kPanel) - whole) * padded_k,
      T(0));
}

}  // namespace

void pack_rows(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed) {
  clear_panels(n, padded_k, k, packed);
  HWY_DYNAMIC_DISPATCH(pack_row_pairs)(from, stride, k, n, padded_k, packed);
}

void pack_rows(
    const float* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    float* packed) {
  clear_panels(n, padded_k, k, packed);
  for (int64_t column = 0; column < n; column += kPanel) {
    const int64_t width = std::min(kPanel, n - column);
    for (int64_t row = 0; row < k; ++row)
      std::copy_n(
          from + row * stride + column,
          width,
          packed + column * padded_k + row * kPanel);
  }
}

void pack_columns(
    const uint16_t* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    uint16_t* packed) {
  clear_panels(n, padded_k, k, packed);
  for (int64_t column = 0; column < n; column += kPanel) {
    const int64_t width = std::min(kPanel, n - column);
    uint16_t* panel = packed + column * padded_k;
    const uint16_t* source = from + column * stride;
    if (stride % 2 == 0 && reinterpret_cast<uintptr_t>(from) % 4 == 0) {
      transpose_words(source, stride / 2, width, k / 2, panel, kPanel);
    } else {
      for (int64_t i = 0; i < width; ++i) {
        for (int64_t row = 0; row + 1 < k; row += 2)
          std::memcpy(
              panel + row * kPanel + 2 * i, source + i * stride + row, 4);
      }
    }
    if (k % 2 == 1) {
      for (int64_t i = 0; i < width; ++i) {
        panel[(k - 1) * kPanel + 2 * i] = source[i * stride + k - 1];
        panel[(k - 1) * kPanel + 2 * i + 1] = 0;
      }
    }
  }
}

void pack_columns(
    const float* from,
    int64_t stride,
    int64_t k,
    int64_t n,
    int64_t padded_k,
    float* packed) {
  clear_panels(n, padded_k, k, packed);
  for (int64_t column = 0; column < n; column += kPanel) {
    transpose_words(
        from + column * stride,
        stride,
        std::min(kPanel, n - column),
        k,
        packed + column * padded_k,
        kPanel);
  }
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
