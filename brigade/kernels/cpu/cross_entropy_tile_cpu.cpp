#include <algorithm>
#include <cmath>

#include "brigade/kernels/cpu/cross_entropy_tile.h"
#include "brigade/kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/cross_entropy_tile_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// What is kept of a float32 in (0, 2): 5 bits of its exponent, from 2^-31 on,
// and 11 of its mantissa.
constexpr int kKeptShift = 23 - 11;
constexpr int32_t kKeptLeast = (127 - 31) << 23;

// A NaN counts as something; the sum has it anyway.
HWY_INLINE void store_kept(VF value, uint16_t* to) {
  const DI32 di;
  const auto above = hn::Sub(
      hn::BitCast(di, value), hn::Set(di, kKeptLeast - (1 << kKeptShift) / 2));
  const auto bits = hn::ShiftRight<kKeptShift>(hn::Max(above, hn::Zero(di)));
  store_low_halves(hn::BitCast(DU32(), bits), to);
}

HWY_INLINE VF load_kept(const uint16_t* from) {
  const DI32 di;
  const auto bits = hn::PromoteTo(di, hn::LoadU(DU16(), from));
  return hn::BitCast(
      DF(), hn::Add(hn::ShiftLeft<kKeptShift>(bits), hn::Set(di, kKeptLeast)));
}

// Keeps each row by keep(row, column, exp(logit - maximum)).
template <typename Keep>
HWY_INLINE void fold(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum,
    const Keep& keep) {
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
    // Subtracted first: the maximum's own exponential is 1 exactly.
    const auto exp_at = [&](int64_t row) HWY_ATTR {
      const auto value = fast_exp2(hn::Mul(hn::Sub(at(row), top), log2e));
      keep(row, t, value);
      return value;
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

void fold_logits_simd(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum) {
  fold(logits, rows, maximum, sum, [](int64_t, int64_t, VF) HWY_ATTR {});
}

void fold_and_keep_logits_simd(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum,
    const KeptTile& kept) {
  fold(
      logits,
      rows,
      maximum,
      sum,
      [&](int64_t row, int64_t t, VF value) HWY_ATTR {
        store_kept(value, kept.exponentials + row * kPanel + t);
      });
  std::copy_n(maximum, kPanel, kept.maximum);
}

// gradients(column, lse, factor): a function of a row.
template <typename Gradients>
HWY_INLINE void gradients(const GradientTile& tile, const Gradients& of_rows) {
  const DF df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t t = 0; t < kPanel; t += lanes) {
    const auto gradient =
        of_rows(t, hn::LoadU(df, tile.lse + t), hn::LoadU(df, tile.factor + t));
    for (int64_t row = 0; row < kTileRows; row += 2) {
      uint16_t* row_out = tile.out + row * tile.out_stride + t;
      store_bf16_pair(
          gradient(row),
          gradient(row + 1),
          row_out,
          row_out + tile.out_stride,
          reinterpret_cast<uint32_t*>(tile.pairs + row * kPanel + 2 * t));
    }
  }
}

void gradient_tile_simd(const float* logits, const GradientTile& tile) {
  const DF df;
  gradients(tile, [&](int64_t t, VF lse, VF factor) HWY_ATTR {
    const auto log2e = hn::Set(df, kLog2E);
    const auto shift = hn::Mul(lse, log2e);
    return [=](int64_t row) HWY_ATTR {
      const auto logit = hn::LoadU(df, logits + row * kPanel + t);
      return hn::Mul(fast_exp2(hn::MulSub(logit, log2e, shift)), factor);
    };
  });
}

void gradient_kept_tile_simd(const KeptTile& kept, const GradientTile& tile) {
  const DF df;
  gradients(tile, [&](int64_t t, VF lse, VF factor) HWY_ATTR {
    const auto above_lse = hn::Sub(hn::LoadU(df, kept.maximum + t), lse);
    const auto scale =
        hn::Mul(fast_exp2(hn::Mul(above_lse, hn::Set(df, kLog2E))), factor);
    return [=](int64_t row) HWY_ATTR {
      return hn::Mul(load_kept(kept.exponentials + row * kPanel + t), scale);
    };
  });
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
HWY_EXPORT(fold_and_keep_logits_simd);
HWY_EXPORT(gradient_tile_simd);
HWY_EXPORT(gradient_kept_tile_simd);
HWY_EXPORT(add_row_simd);
HWY_EXPORT(exp_row_simd);

void fold_logits(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum) {
  HWY_DYNAMIC_DISPATCH(fold_logits_simd)(logits, rows, maximum, sum);
}
void fold_and_keep_logits(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum,
    const KeptTile& kept) {
  HWY_DYNAMIC_DISPATCH(fold_and_keep_logits_simd)
  (logits, rows, maximum, sum, kept);
}
void gradient_tile(const float* logits, const GradientTile& tile) {
  HWY_DYNAMIC_DISPATCH(gradient_tile_simd)(logits, tile);
}
void gradient_tile(const KeptTile& kept, const GradientTile& tile) {
  HWY_DYNAMIC_DISPATCH(gradient_kept_tile_simd)(kept, tile);
}
void add_row(const float* from, int64_t numel, float* to) {
  HWY_DYNAMIC_DISPATCH(add_row_simd)(from, numel, to);
}
float exp_row(float* row, int64_t numel, float maximum) {
  return HWY_DYNAMIC_DISPATCH(exp_row_simd)(row, numel, maximum);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
