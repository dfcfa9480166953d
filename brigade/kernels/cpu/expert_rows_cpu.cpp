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

static constexpr auto& rows_f32 = rows<float>;
static constexpr auto& rows_bf16 = rows<uint16_t>;
static constexpr auto& sum_f32 = sum<float>;
static constexpr auto& sum_bf16 = sum<uint16_t>;
static constexpr auto& products_f32 = products<float>;
static constexpr auto& products_bf16 = products<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
BRIGADE_EXPORT_KERNEL(rows_of_pairs, RowsOfPairs, rows);
BRIGADE_EXPORT_KERNEL(sum_of_pairs, SumOfPairs, sum);
BRIGADE_EXPORT_KERNEL(products_of_pairs, ProductsOfPairs, products);

}  // namespace brigade::ops
#endif  // HWY_ONCE
