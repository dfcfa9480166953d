#include "brigade/kernels/cpu/row_product.h"

#include <algorithm>

#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/row_product_cpu.cpp"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// Columns whose sums wait to be rounded together, and whose weights further
// rows find in the cache.
constexpr int64_t kColumnsAtOnce = 64;
// How far ahead weights are asked for: what the processor asks for by itself
// ends with a page.
constexpr int64_t kAheadBytes = 2048;

// A vector of float32, or two of bf16: those at even places and those at odd
// ones, which takes fewer instructions than two halves. Constructors that are
// written out are compiled for the target; implicit ones would not be (NEON).
struct One {
  HWY_INLINE One() {}
  HWY_INLINE explicit One(VF all) : value(all) {}
  VF value;
  static constexpr size_t kVectors = 1;
};
struct Two {
  HWY_INLINE Two() {}
  HWY_INLINE Two(VF at_even, VF at_odd) : even(at_even), odd(at_odd) {}
  VF even, odd;
  static constexpr size_t kVectors = 2;
};
HWY_INLINE One load_wide(const float* from) {
  return One(hn::LoadU(DF(), from));
}
HWY_INLINE Two load_wide(const uint16_t* from) {
  const DU32 du;
  const DF df;
  const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(from));
  return {
      hn::BitCast(df, hn::ShiftLeft<16>(pairs)),
      hn::BitCast(df, hn::And(pairs, hn::Set(du, 0xffff0000U)))};
}
HWY_INLINE void add_products(const One& a, const One& b, One& sum) {
  sum.value = hn::MulAdd(a.value, b.value, sum.value);
}
HWY_INLINE void add_products(const Two& a, const Two& b, Two& sum) {
  sum.even = hn::MulAdd(a.even, b.even, sum.even);
  sum.odd = hn::MulAdd(a.odd, b.odd, sum.odd);
}
HWY_INLINE VF joined(const One& sum) {
  return sum.value;
}
HWY_INLINE VF joined(const Two& sum) {
  return hn::Add(sum.even, sum.odd);
}
HWY_INLINE void clear(One& sum) {
  sum.value = hn::Zero(DF());
}
HWY_INLINE void clear(Two& sum) {
  sum.even = sum.odd = hn::Zero(DF());
}

HWY_INLINE void ask_for(const void* weights) {
  hwy::Prefetch(static_cast<const char*>(weights) + kAheadBytes);
}

// sums[row * kColumnsAtOnce] of kRows rows and one column: a column after the
// other, so that memory is read as it lies. Two sums each, because one would
// wait for its own additions.
template <int kRows, typename T>
HWY_INLINE void
add_up(const RowProduct<T>& p, int64_t row, int64_t column, float* sums) {
  const DF df;
  using Wide = decltype(load_wide(p.x));
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto step = static_cast<int64_t>(Wide::kVectors) * lanes;
  const T* x = p.x + row * p.x_stride;
  const T* weight = p.weight + column * p.weight_stride;
  Wide first[kRows];
  Wide second[kRows];
  for (int r = 0; r < kRows; ++r) {
    clear(first[r]);
    clear(second[r]);
  }
  int64_t i = 0;
  for (; i + 2 * step <= p.depth; i += 2 * step) {
    ask_for(weight + i);
    ask_for(weight + i + step);
    const Wide some = load_wide(weight + i);
    const Wide others = load_wide(weight + i + step);
    for (int r = 0; r < kRows; ++r) {
      add_products(load_wide(x + r * p.x_stride + i), some, first[r]);
      add_products(load_wide(x + r * p.x_stride + i + step), others, second[r]);
    }
  }
  VF total[kRows];
  for (int r = 0; r < kRows; ++r)
    total[r] = hn::Add(joined(first[r]), joined(second[r]));
  for (; i < p.depth; i += lanes) {
    const auto rest = static_cast<size_t>(std::min(lanes, p.depth - i));
    const VF some = load_part(df, weight + i, rest);
    for (int r = 0; r < kRows; ++r)
      total[r] = hn::MulAdd(
          load_part(df, x + r * p.x_stride + i, rest), some, total[r]);
  }
  for (int r = 0; r < kRows; ++r)
    sums[r * kColumnsAtOnce] = sum_of_lanes(total[r]);
}

// Rounds `columns` sums of a row.
template <typename T>
void finish_row(
    const RowProduct<T>& p,
    int64_t row,
    int64_t column,
    int64_t columns,
    const float* sums) {
  T* y = p.y + row * p.y_stride + column;
  for_vectors(
      static_cast<size_t>(columns), [&](size_t i, auto get, auto put) HWY_ATTR {
        put(p.bias == nullptr
                ? get(sums + i)
                : hn::Add(get(sums + i), get(p.bias + column + i)),
            y + i);
      });
}

template <int kRows, typename T>
HWY_NOINLINE void multiply_rows(
    const RowProduct<T>& p,
    int64_t row,
    int64_t column,
    int64_t columns) {
  float sums[kRows * kColumnsAtOnce];
  for (int64_t c = 0; c < columns; ++c)
    add_up<kRows>(p, row, column + c, sums + c);
  for (int r = 0; r < kRows; ++r)
    finish_row(p, row + r, column, columns, sums + r * kColumnsAtOnce);
}

template <typename T>
void multiply(const RowProduct<T>& p, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end; column += kColumnsAtOnce) {
    const int64_t columns = std::min(kColumnsAtOnce, end - column);
    int64_t row = 0;
    for (; row + 2 <= p.rows; row += 2)
      multiply_rows<2>(p, row, column, columns);
    if (row < p.rows)
      multiply_rows<1>(p, row, column, columns);
  }
}

static constexpr auto& row_product_f32 = multiply<float>;
static constexpr auto& row_product_bf16 = multiply<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
BRIGADE_EXPORT_KERNEL(row_product, RowProduct, row_product);

}  // namespace brigade::ops
#endif  // HWY_ONCE
