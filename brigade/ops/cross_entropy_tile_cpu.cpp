#include <cmath>

#include "brigade/ops/cross_entropy_tile.h"
#include "brigade/ops/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/ops/cross_entropy_tile_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

void fold_logits_simd(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum) {
  const DF df;
  const auto log2e = hn::Set(df, kLog2E);
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t t = 0; t < kPanel; t += lanes) {
    const auto at = [&](int64_t row) HWY_ATTR {
      return hn::LoadU(df, logits + row * kPanel + t);
    };
    const auto before = hn::LoadU(df, maximum + t);
    // Two chains of each, to hide their latencies.
    auto top = hn::Max(before, at(rows - 1));
    auto other_top = before;
    for (int64_t row = 0; row + 1 < rows; row += 2) {
      top = hn::Max(top, at(row));
      other_top = hn::Max(other_top, at(row + 1));
    }
    top = hn::Max(top, other_top);
    const auto shift = hn::Mul(top, log2e);
    const auto exp_at = [&](int64_t row) HWY_ATTR {
      return fast_exp2(hn::MulSub(at(row), log2e, shift));
    };
    auto total =
        hn::Mul(hn::LoadU(df, sum + t), fast_exp(hn::Sub(before, top)));
    auto other_total = rows % 2 == 1 ? exp_at(rows - 1) : hn::Zero(df);
    for (int64_t row = 0; row + 1 < rows; row += 2) {
      total = hn::Add(total, exp_at(row));
      other_total = hn::Add(other_total, exp_at(row + 1));
    }
    hn::StoreU(top, df, maximum + t);
    hn::StoreU(hn::Add(total, other_total), df, sum + t);
  }
}

void gradient_tile_simd(
    const float* logits,
    const float* lse,
    const float* factor,
    uint16_t* out,
    int64_t out_stride,
    uint16_t* pairs) {
  const DF df;
  const auto log2e = hn::Set(df, kLog2E);
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t t = 0; t < kPanel; t += lanes) {
    const auto shift = hn::Mul(hn::LoadU(df, lse + t), log2e);
    const auto scale = hn::LoadU(df, factor + t);
    for (int64_t row = 0; row < kTileRows; row += 2) {
      const auto gradient = [&](int64_t of) HWY_ATTR {
        const auto x =
            hn::MulSub(hn::LoadU(df, logits + of * kPanel + t), log2e, shift);
        return hn::Mul(fast_exp2(x), scale);
      };
      uint16_t* row_out = out + row * out_stride + t;
      store_bf16_pair(
          gradient(row),
          gradient(row + 1),
          row_out,
          row_out + out_stride,
          reinterpret_cast<uint32_t*>(pairs + row * kPanel + 2 * t));
    }
  }
}

bool any_in_tile_simd(const int32_t* targets, int64_t first) {
  const DI32 di;
  const auto begin = hn::Set(di, static_cast<int32_t>(first));
  const auto end = hn::Set(di, static_cast<int32_t>(first + kTileRows));
  const auto lanes = static_cast<int64_t>(hn::Lanes(di));
  bool any = false;
  for (int64_t t = 0; t < kPanel; t += lanes) {
    const auto target = hn::LoadU(di, targets + t);
    any |= !hn::AllFalse(
        di, hn::AndNot(hn::Lt(target, begin), hn::Lt(target, end)));
  }
  return any;
}

void add_row_simd(const float* from, int64_t numel, float* to) {
  for_vectors(
      static_cast<size_t>(numel), [&](size_t i, auto get, auto put) HWY_ATTR {
        put(hn::Add(get(to + i), get(from + i)), to + i);
      });
}

float exp_row_simd(float* row, int64_t numel, float maximum) {
  const DF df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  const auto top = hn::Set(df, maximum);
  auto total = hn::Zero(df);
  int64_t i = 0;
  for (; i + lanes <= numel; i += lanes) {
    const auto value = fast_exp(hn::Sub(hn::LoadU(df, row + i), top));
    hn::StoreU(value, df, row + i);
    total = hn::Add(total, value);
  }
  float sum = sum_of_lanes(total);
  for (; i < numel; ++i) {
    row[i] = std::exp(row[i] - maximum);
    sum += row[i];
  }
  return sum;
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
HWY_EXPORT(fold_logits_simd);
HWY_EXPORT(gradient_tile_simd);
HWY_EXPORT(any_in_tile_simd);
HWY_EXPORT(add_row_simd);
HWY_EXPORT(exp_row_simd);

void fold_logits(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum) {
  HWY_DYNAMIC_DISPATCH(fold_logits_simd)(logits, rows, maximum, sum);
}
void gradient_tile(
    const float* logits,
    const float* lse,
    const float* factor,
    uint16_t* out,
    int64_t out_stride,
    uint16_t* pairs) {
  HWY_DYNAMIC_DISPATCH(gradient_tile_simd)
  (logits, lse, factor, out, out_stride, pairs);
}
bool any_in_tile(const int32_t* targets, int64_t first) {
  return HWY_DYNAMIC_DISPATCH(any_in_tile_simd)(targets, first);
}
void add_row(const float* from, int64_t numel, float* to) {
  HWY_DYNAMIC_DISPATCH(add_row_simd)(from, numel, to);
}
float exp_row(float* row, int64_t numel, float maximum) {
  return HWY_DYNAMIC_DISPATCH(exp_row_simd)(row, numel, maximum);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
