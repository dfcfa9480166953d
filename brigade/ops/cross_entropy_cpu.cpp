#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "brigade/ops/cross_entropy_kernel.h"
#include "brigade/ops/scratch.h"
#include "brigade/ops/simd_targets.h"
#include "brigade/ops/tile_product.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/ops/cross_entropy_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// Folds `rows` rows of logits [rows, tokens] into the running maximum and sum
// of each column. tokens is a multiple of 16.
void fold_logits(
    const float* logits,
    int64_t rows,
    int64_t stride,
    int64_t tokens,
    float* maximum,
    float* sum) {
  const DF df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t t = 0; t < tokens; t += lanes) {
    const auto before = hn::LoadU(df, maximum + t);
    auto top = before;
    for (int64_t row = 0; row < rows; ++row)
      top = hn::Max(top, hn::LoadU(df, logits + row * stride + t));
    auto total =
        hn::Mul(hn::LoadU(df, sum + t), fast_exp(hn::Sub(before, top)));
    for (int64_t row = 0; row < rows; ++row)
      total = hn::Add(
          total,
          fast_exp(hn::Sub(hn::LoadU(df, logits + row * stride + t), top)));
    hn::StoreU(top, df, maximum + t);
    hn::StoreU(total, df, sum + t);
  }
}

// Turns logits [rows, tokens] into gradients factor * exp(logit - lse), as rows
// of bf16 and as pairs of rows (rows 2i and 2i + 1 side by side, panels of
// kPanel tokens panel_stride apart). rows is even.
void gradient_tile(
    const float* logits,
    int64_t rows,
    int64_t stride,
    int64_t tokens,
    const float* lse,
    const float* factor,
    uint16_t* out,
    int64_t out_stride,
    uint16_t* pairs,
    int64_t panel_stride) {
  const DF df;
  const DU32 du;
  const auto lanes = static_cast<int64_t>(hn::Lanes(df));
  for (int64_t t = 0; t < tokens; t += lanes) {
    const auto shift = hn::LoadU(df, lse + t);
    const auto scale = hn::LoadU(df, factor + t);
    uint16_t* panel = pairs + t / kPanel * panel_stride + t % kPanel * 2;
    for (int64_t row = 0; row < rows; row += 2) {
      const float* even = logits + row * stride + t;
      const auto first =
          hn::Mul(fast_exp(hn::Sub(hn::LoadU(df, even), shift)), scale);
      const auto second = hn::Mul(
          fast_exp(hn::Sub(hn::LoadU(df, even + stride), shift)), scale);
      store(first, df, out + row * out_stride + t);
      store(second, df, out + (row + 1) * out_stride + t);
      hn::StoreU(
          hn::Or(to_bf16_bits(first), hn::ShiftLeft<16>(to_bf16_bits(second))),
          du,
          reinterpret_cast<uint32_t*>(panel + row * kPanel));
    }
  }
}

void add_row(const float* from, int64_t numel, float* to) {
  for_vectors(
      static_cast<size_t>(numel), [&](size_t i, auto get, auto put) HWY_ATTR {
        put(hn::Add(get(to + i), get(from + i)), to + i);
      });
}

void round_row(const float* from, int64_t numel, uint16_t* to) {
  for_vectors(
      static_cast<size_t>(numel), [&](size_t i, auto get, auto put) HWY_ATTR {
        put(get(from + i), to + i);
      });
}

float exp_of_row(float* row, int64_t numel, float maximum) {
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
namespace {

HWY_EXPORT(fold_logits);
HWY_EXPORT(gradient_tile);
HWY_EXPORT(add_row);
HWY_EXPORT(round_row);
HWY_EXPORT(exp_of_row);

constexpr int64_t kTileRows = 64;  // vocabulary entries of a logit tile
constexpr int64_t kStatisticsTokens = 256;
constexpr int64_t kGradientTokens = 128;
// Parts of the vocabulary whose statistics are merged in order: fixed, so that
// the result does not depend on the number of threads.
constexpr int64_t kSegments = 16;

uint16_t to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// The sizes, rounded up to what tile_product() takes.
struct Padded {
  explicit Padded(const HeadShape& shape)
      : tokens(round_up(shape.tokens, kPanel)),
        depth(round_up(shape.columns, kDepth)),
        columns(round_up(shape.columns, kRowTile)),
        vocabulary(round_up(shape.vocabulary, kTileRows)) {}
  int64_t tokens;
  int64_t depth;    // C as the inner dimension
  int64_t columns;  // C as an outer dimension
  int64_t vocabulary;
};

// Rows [begin, begin + numel) of the weight with `depth` columns: as they lie
// where they may be read so, else copied with zeros around.
struct WeightRows {
  const uint16_t* data;
  int64_t stride;
};

WeightRows weight_rows(
    const HeadShape& shape,
    int64_t begin,
    int64_t numel,
    int64_t depth,
    uint16_t* copy) {
  if (depth == shape.columns && begin + numel <= shape.vocabulary)
    return {shape.weight + begin * shape.weight_stride, shape.weight_stride};
  std::fill_n(copy, numel * depth, uint16_t{0});
  const int64_t rows = std::min(numel, shape.vocabulary - begin);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(
        shape.weight + (begin + row) * shape.weight_stride,
        shape.columns,
        copy + row * depth);
  return {copy, depth};
}

// One segment of the vocabulary into its own maxima and sums.
void segment_statistics(
    const HeadShape& shape,
    const Padded& padded,
    const uint16_t* tokens_packed,
    int64_t first,
    int64_t end,
    float* maximum,
    float* sum,
    float* target_logit) {
  std::fill_n(maximum, padded.tokens, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, padded.tokens, 0.0F);
  const auto lay_out = [&](void* base) {
    ScratchPieces pieces(base);
    auto* copy = pieces.take<uint16_t>(kTileRows * padded.depth);
    auto* logits = pieces.take<float>(kTileRows * kStatisticsTokens);
    return std::tuple{copy, logits, pieces.used()};
  };
  const size_t bytes = std::get<2>(lay_out(nullptr));
  const auto [copy, logits, used] =
      lay_out(scratch(ScratchSlot::kKernel, bytes));
  const TileSession session;
  for (int64_t row = first; row < end; row += kTileRows) {
    const WeightRows rows =
        weight_rows(shape, row, kTileRows, padded.depth, copy);
    const int64_t valid = std::min(kTileRows, shape.vocabulary - row);
    for (int64_t t = 0; t < padded.tokens; t += kStatisticsTokens) {
      const int64_t width = std::min(kStatisticsTokens, padded.tokens - t);
      tile_product(TileProduct<uint16_t>{
          .a = rows.data,
          .b = tokens_packed + t * padded.depth,
          .c = logits,
          .m = kTileRows,
          .n = width,
          .k = padded.depth,
          .a_stride = rows.stride,
          .panel_stride = kPanel * padded.depth,
          .c_stride = kStatisticsTokens,
          .add = false});
      HWY_DYNAMIC_DISPATCH(fold_logits)
      (logits, valid, kStatisticsTokens, width, maximum + t, sum + t);
      const int64_t real = std::min(width, shape.tokens - t);
      for (int64_t i = 0; i < real; ++i) {
        const int64_t target = shape.target[t + i] - row;
        if (target >= 0 && target < valid)
          target_logit[t + i] = logits[target * kStatisticsTokens + i];
      }
    }
  }
}

// What one thread works with while it makes gradients.
struct GradientBuffers {
  uint16_t* copy;      // weight rows, where they must be padded
  uint16_t* weight_t;  // [C, block]
  float* logits;       // [kTileRows, kGradientTokens]
  uint16_t* gradient;  // [block, kGradientTokens]
  uint16_t* pairs;     // the same, pairs of rows
  float* dweight;      // [block, C]
};

struct GradientWork {
  const HeadShape& shape;
  const HeadGradients& result;
  Padded padded;
  int64_t block;              // vocabulary entries at a time
  const uint16_t* by_column;  // hidden, packed for logits
  const uint16_t* by_row;     // hidden, packed for the weight's gradient
  const float* lse;           // padded
  const float* factor;        // padded
};

// The gradient of the logits of a block of the vocabulary and some tokens.
void logit_gradients(
    const GradientWork& work,
    const WeightRows& rows,
    int64_t first,
    int64_t numel,
    int64_t t,
    int64_t width,
    const GradientBuffers& buffers) {
  const HeadShape& shape = work.shape;
  const int64_t panel_stride = work.block * kPanel;
  for (int64_t row = 0; row < numel; row += kTileRows) {
    tile_product(TileProduct<uint16_t>{
        .a = rows.data + row * rows.stride,
        .b = work.by_column + t * work.padded.depth,
        .c = buffers.logits,
        .m = kTileRows,
        .n = width,
        .k = work.padded.depth,
        .a_stride = rows.stride,
        .panel_stride = kPanel * work.padded.depth,
        .c_stride = kGradientTokens,
        .add = false});
    uint16_t* out = buffers.gradient + row * kGradientTokens;
    uint16_t* pairs = buffers.pairs + row * kPanel;
    HWY_DYNAMIC_DISPATCH(gradient_tile)
    (buffers.logits,
     kTileRows,
     kGradientTokens,
     width,
     work.lse + t,
     work.factor + t,
     out,
     kGradientTokens,
     pairs,
     panel_stride);
    const auto put = [&](int64_t entry, int64_t i, uint16_t value) {
      out[entry * kGradientTokens + i] = value;
      pairs
          [i / kPanel * panel_stride + entry / 2 * 2 * kPanel + i % kPanel * 2 +
           entry % 2] = value;
    };
    const int64_t real = std::min(width, shape.tokens - t);
    for (int64_t i = 0; i < real; ++i) {
      const int64_t target = shape.target[t + i] - first - row;
      if (target < 0 || target >= kTileRows)
        continue;
      const float logit = buffers.logits[target * kGradientTokens + i];
      const float p = std::exp(logit - work.lse[t + i]);
      put(target, i, to_bf16(work.factor[t + i] * (p - 1.0F)));
    }
    // Rows beyond the vocabulary have no probability.
    const int64_t valid = shape.vocabulary - first - row;
    for (int64_t entry = std::max<int64_t>(0, valid); entry < kTileRows;
         ++entry) {
      for (int64_t i = 0; i < width; ++i)
        put(entry, i, 0);
    }
  }
}

void block_gradients(
    const GradientWork& work,
    int64_t first,
    const GradientBuffers& buffers,
    float* dhidden_t) {
  const HeadShape& shape = work.shape;
  const Padded& padded = work.padded;
  const int64_t numel =
      std::min(work.block, round_up(shape.vocabulary - first, kTileRows));
  const WeightRows rows =
      weight_rows(shape, first, numel, padded.depth, buffers.copy);
  if (dhidden_t != nullptr) {
    transpose(
        rows.data,
        rows.stride,
        numel,
        shape.columns,
        buffers.weight_t,
        work.block);
    std::fill_n(
        buffers.weight_t + shape.columns * work.block,
        (padded.columns - shape.columns) * work.block,
        uint16_t{0});
  }
  for (int64_t t = 0; t < padded.tokens; t += kGradientTokens) {
    const int64_t width = std::min(kGradientTokens, padded.tokens - t);
    logit_gradients(work, rows, first, numel, t, width, buffers);
    if (work.result.dweight != nullptr)
      tile_product(TileProduct<uint16_t>{
          .a = buffers.gradient,
          .b = work.by_row + t * kPanel,
          .c = buffers.dweight,
          .m = numel,
          .n = padded.columns,
          .k = width,
          .a_stride = kGradientTokens,
          .panel_stride = kPanel * padded.tokens,
          .c_stride = padded.columns,
          .add = t > 0});
    if (dhidden_t != nullptr)
      tile_product(TileProduct<uint16_t>{
          .a = buffers.weight_t,
          .b = buffers.pairs,
          .c = dhidden_t + t,
          .m = padded.columns,
          .n = width,
          .k = numel,
          .a_stride = work.block,
          .panel_stride = kPanel * work.block,
          .c_stride = padded.tokens,
          .add = true});
  }
  if (work.result.dweight == nullptr)
    return;
  const int64_t valid = std::min(numel, shape.vocabulary - first);
  for (int64_t row = 0; row < valid; ++row)
    HWY_DYNAMIC_DISPATCH(add_row)
  (buffers.dweight + row * padded.columns,
   shape.columns,
   work.result.dweight + (first + row) * shape.columns);
}

// Sums the threads' parts [C, tokens] and stores them as rows of bf16.
void store_dhidden(
    const HeadShape& shape,
    const Padded& padded,
    float* parts,
    int64_t threads,
    uint16_t* dhidden) {
  const int64_t part = padded.columns * padded.tokens;
  at::parallel_for(
      0, padded.tokens / kPanel, 1, [&](int64_t begin, int64_t end) {
        auto* rows = static_cast<float*>(scratch(
            ScratchSlot::kKernel, kPanel * padded.columns * sizeof(float)));
        for (int64_t panel = begin; panel < end; ++panel) {
          const int64_t t = panel * kPanel;
          for (int64_t thread = 1; thread < threads; ++thread) {
            for (int64_t column = 0; column < shape.columns; ++column)
              HWY_DYNAMIC_DISPATCH(add_row)
            (parts + thread * part + column * padded.tokens + t,
             kPanel,
             parts + column * padded.tokens + t);
          }
          transpose(
              parts + t,
              padded.tokens,
              shape.columns,
              kPanel,
              rows,
              padded.columns);
          const int64_t real = std::min(kPanel, shape.tokens - t);
          for (int64_t i = 0; i < real; ++i)
            HWY_DYNAMIC_DISPATCH(round_row)
          (rows + i * padded.columns,
           shape.columns,
           dhidden + (t + i) * shape.columns);
        }
      });
}

}  // namespace

void head_statistics(const HeadShape& shape, const HeadStatistics& result) {
  const Padded padded(shape);
  const auto lay_out = [&](void* base) {
    ScratchPieces pieces(base);
    auto* packed = pieces.take<uint16_t>(padded.depth * padded.tokens);
    auto* maxima = pieces.take<float>(kSegments * padded.tokens);
    auto* sums = pieces.take<float>(kSegments * padded.tokens);
    return std::tuple{packed, maxima, sums, pieces.used()};
  };
  const size_t bytes = std::get<3>(lay_out(nullptr));
  const auto [packed, maxima, sums, used] =
      lay_out(scratch(ScratchSlot::kShared, bytes));
  pack_columns(
      shape.hidden,
      shape.hidden_stride,
      shape.columns,
      shape.tokens,
      padded.depth,
      packed);
  std::fill_n(result.target_logit, shape.tokens, 0.0F);
  const int64_t tiles = padded.vocabulary / kTileRows;
  // Copies: structured bindings cannot be captured by older compilers.
  const uint16_t* tokens_packed = packed;
  float* all_maxima = maxima;
  float* all_sums = sums;
  at::parallel_for(0, kSegments, 1, [&](int64_t begin, int64_t end) {
    for (int64_t segment = begin; segment < end; ++segment)
      segment_statistics(
          shape,
          padded,
          tokens_packed,
          segment * tiles / kSegments * kTileRows,
          (segment + 1) * tiles / kSegments * kTileRows,
          all_maxima + segment * padded.tokens,
          all_sums + segment * padded.tokens,
          result.target_logit);
  });
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t segment = 0; segment < kSegments; ++segment)
      top = std::max(top, maxima[segment * padded.tokens + t]);
    float sum = 0;
    for (int64_t segment = 0; segment < kSegments; ++segment) {
      const int64_t i = segment * padded.tokens + t;
      if (sums[i] > 0)
        sum += sums[i] * std::exp(maxima[i] - top);
    }
    result.maximum[t] = top;
    result.sum[t] = sum;
  }
}

void head_gradients(const HeadShape& shape, const HeadGradients& result) {
  const Padded padded(shape);
  constexpr int64_t kBlockNumel = 150'000;  // of weight: 0.3 MB of cache
  const int64_t block = std::clamp<int64_t>(
      kBlockNumel / shape.columns / kTileRows * kTileRows, kTileRows, 512);
  const int64_t blocks = (shape.vocabulary + block - 1) / block;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t part = padded.columns * padded.tokens;
  const auto lay_out = [&](void* base) {
    ScratchPieces pieces(base);
    auto* by_column = pieces.take<uint16_t>(padded.depth * padded.tokens);
    auto* by_row =
        pieces.take<uint16_t>(round_up(shape.columns, kPanel) * padded.tokens);
    auto* lse = pieces.take<float>(padded.tokens);
    auto* factor = pieces.take<float>(padded.tokens);
    auto* parts =
        pieces.take<float>(result.dhidden == nullptr ? 0 : threads * part);
    return std::tuple{by_column, by_row, lse, factor, parts, pieces.used()};
  };
  const size_t bytes = std::get<5>(lay_out(nullptr));
  const auto shared = lay_out(scratch(ScratchSlot::kShared, bytes));
  auto* by_column = std::get<0>(shared);
  auto* by_row = std::get<1>(shared);
  auto* lse = std::get<2>(shared);
  auto* factor = std::get<3>(shared);
  auto* parts = std::get<4>(shared);
  pack_columns(
      shape.hidden,
      shape.hidden_stride,
      shape.columns,
      shape.tokens,
      padded.depth,
      by_column);
  pack_rows(
      shape.hidden,
      shape.hidden_stride,
      shape.tokens,
      shape.columns,
      padded.tokens,
      by_row);
  std::fill_n(lse, padded.tokens, 0.0F);
  std::fill_n(factor, padded.tokens, 0.0F);
  std::copy_n(result.lse, shape.tokens, lse);
  std::copy_n(result.factor, shape.tokens, factor);
  if (result.dhidden != nullptr)
    std::fill_n(parts, threads * part, 0.0F);
  const GradientWork work{
      shape, result, padded, block, by_column, by_row, lse, factor};
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    const auto buffers_at = [&](void* base, GradientBuffers& buffers) {
      ScratchPieces pieces(base);
      buffers.copy = pieces.take<uint16_t>(block * padded.depth);
      buffers.weight_t = pieces.take<uint16_t>(padded.columns * block);
      buffers.logits = pieces.take<float>(kTileRows * kGradientTokens);
      buffers.gradient = pieces.take<uint16_t>(block * kGradientTokens);
      buffers.pairs = pieces.take<uint16_t>(block * kGradientTokens);
      buffers.dweight = pieces.take<float>(block * padded.columns);
      return pieces.used();
    };
    GradientBuffers buffers{};
    const size_t needed = buffers_at(nullptr, buffers);
    buffers_at(scratch(ScratchSlot::kKernel, needed), buffers);
    float* dhidden_t = result.dhidden == nullptr
                           ? nullptr
                           : parts + at::get_thread_num() * part;
    const TileSession session;
    for (int64_t i = begin; i < end; ++i)
      block_gradients(work, i * block, buffers, dhidden_t);
  });
  if (result.dhidden != nullptr)
    store_dhidden(shape, padded, parts, threads, result.dhidden);
}

float exp_row(float* row, int64_t numel, float maximum) {
  return HWY_DYNAMIC_DISPATCH(exp_of_row)(row, numel, maximum);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
