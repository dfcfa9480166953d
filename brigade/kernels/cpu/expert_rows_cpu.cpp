#include "brigade/kernels/cpu/expert_rows_kernel.h"

#include <cstring>

#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/expert_rows_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

template <typename T>
void rows(const RowsOfPairs<T>& p, int64_t begin, int64_t end) {
  const auto columns = static_cast<size_t>(p.columns);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t pair = p.pair_of_row[row];
    const T* from = p.x + pair / p.per_token * p.columns;
    T* to = p.rows + row * p.columns;
    if (p.weights == nullptr) {
      std::memcpy(to, from, columns * sizeof(T));
      continue;
    }
    const auto weight = hn::Set(DF(), p.weights[pair]);
    for_vectors(columns, [&](size_t i, auto get, auto put) HWY_ATTR {
      put(hn::Mul(get(from + i), weight), to + i);
    });
  }
}

template <typename T>
void sum(const SumOfPairs<T>& p, int64_t begin, int64_t end) {
  const auto columns = static_cast<size_t>(p.columns);
  for (int64_t token = begin; token < end; ++token) {
    const int64_t first = token * p.per_token;
    for_vectors(columns, [&](size_t i, auto get, auto put) HWY_ATTR {
      auto total = hn::Zero(DF());
      for (int64_t pair = first; pair < first + p.per_token; ++pair) {
        const auto value = get(p.rows + p.row_of_pair[pair] * p.columns + i);
        total = p.weights == nullptr
                    ? hn::Add(total, value)
                    : hn::MulAdd(value, hn::Set(DF(), p.weights[pair]), total);
      }
      put(total, p.sum + token * p.columns + i);
    });
  }
}

template <typename T>
void products(const ProductsOfPairs<T>& p, int64_t begin, int64_t end) {
  const auto columns = static_cast<size_t>(p.columns);
  for (int64_t token = begin; token < end; ++token) {
    const T* x = p.x + token * p.columns;
    const int64_t first = token * p.per_token;
    for (int64_t pair = first; pair < first + p.per_token; ++pair) {
      const T* row = p.rows + p.row_of_pair[pair] * p.columns;
      auto total = hn::Zero(DF());
      for_vectors(columns, [&](size_t i, auto get, auto) HWY_ATTR {
        total = hn::MulAdd(get(row + i), get(x + i), total);
      });
      p.products[pair] = sum_of_lanes(total);
    }
  }
}

using B = uint16_t;
void rows_f32(const RowsOfPairs<float>& p, int64_t b, int64_t e) {
  rows(p, b, e);
}
void rows_bf16(const RowsOfPairs<B>& p, int64_t b, int64_t e) {
  rows(p, b, e);
}
void sum_f32(const SumOfPairs<float>& p, int64_t b, int64_t e) {
  sum(p, b, e);
}
void sum_bf16(const SumOfPairs<B>& p, int64_t b, int64_t e) {
  sum(p, b, e);
}
void products_f32(const ProductsOfPairs<float>& p, int64_t b, int64_t e) {
  products(p, b, e);
}
void products_bf16(const ProductsOfPairs<B>& p, int64_t b, int64_t e) {
  products(p, b, e);
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
HWY_EXPORT(rows_f32);
HWY_EXPORT(rows_bf16);
HWY_EXPORT(sum_f32);
HWY_EXPORT(sum_bf16);
HWY_EXPORT(products_f32);
HWY_EXPORT(products_bf16);

void rows_of_pairs(const RowsOfPairs<float>& p, int64_t b, int64_t e) {
  HWY_DYNAMIC_DISPATCH(rows_f32)(p, b, e);
}
void rows_of_pairs(const RowsOfPairs<uint16_t>& p, int64_t b, int64_t e) {
  HWY_DYNAMIC_DISPATCH(rows_bf16)(p, b, e);
}
void sum_of_pairs(const SumOfPairs<float>& p, int64_t b, int64_t e) {
  HWY_DYNAMIC_DISPATCH(sum_f32)(p, b, e);
}
void sum_of_pairs(const SumOfPairs<uint16_t>& p, int64_t b, int64_t e) {
  HWY_DYNAMIC_DISPATCH(sum_bf16)(p, b, e);
}
void products_of_pairs(const ProductsOfPairs<float>& p, int64_t b, int64_t e) {
  HWY_DYNAMIC_DISPATCH(products_f32)(p, b, e);
}
void products_of_pairs(
    const ProductsOfPairs<uint16_t>& p,
    int64_t b,
    int64_t e) {
  HWY_DYNAMIC_DISPATCH(products_bf16)(p, b, e);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
