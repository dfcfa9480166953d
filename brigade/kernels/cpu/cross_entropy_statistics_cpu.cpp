// The head's first sweep: maxima and sums over the vocabulary, and the logits
// that are kept.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <tuple>
#include <vector>

#include "brigade/kernels/cpu/cross_entropy_kernel.h"
#include "brigade/kernels/cpu/cross_entropy_padding_kernel.h"
#include "brigade/kernels/cpu/scratch.h"

namespace brigade::ops {
namespace {

// Parts of the vocabulary whose statistics are merged in order: fixed, so that
// the result does not depend on the number of threads.
constexpr int64_t kSegments = 16;

// The i-th of `parts` equal parts.
Soon share_of(const Soon& all, int64_t i, int64_t parts) {
  const int64_t bytes = all.bytes / parts;
  return {static_cast<const char*>(all.data) + i * bytes, bytes};
}

// Keeps the logits of a tile's entries, and leaves those out that stand out.
void take_entries(
    std::span<const HeadEntry> entries,
    int64_t first,
    float* logits,
    float* entry_logits) {
  for (const HeadEntry& entry : entries) {
    float& logit = logits[(entry.row - first) * kPanel + entry.column];
    entry_logits[entry.place] = logit;
    if (entry.stands_out)
      logit = kLeftOutLogit;
  }
}

// One segment of the vocabulary into its own maxima and sums.
void segment_statistics(
    const HeadShape& shape,
    const PaddedHead& padded,
    const uint16_t* tokens_packed,
    int64_t first,
    int64_t end,
    float* maximum,
    float* sum,
    float* entry_logits,
    const std::optional<KeptLogits>& kept) {
  std::fill_n(maximum, padded.tokens, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, padded.tokens, 0.0F);
  const auto [copy, logits] =
      scratch_pieces(ScratchSlot::kKernel, [&](ScratchPieces& pieces) {
        return std::tuple{
            pieces.take<uint16_t>(kTileRows * padded.depth),
            pieces.take<float>(kTileRows * kPanel)};
      });
  std::vector<size_t> next = shape.entries->from(first);
  const TileSession session;
  for (int64_t row = first; row < end; row += kTileRows) {
    const WeightRows rows =
        weight_rows(shape, row, kTileRows, padded.depth, copy);
    const int64_t valid = std::min(kTileRows, shape.vocabulary - row);
    const Soon soon = weight_soon(shape, row + kTileRows, kTileRows);
    for (int64_t t = 0; t < padded.tokens; t += kPanel) {
      tile_product(TileProduct<uint16_t>{
          .a = rows.data,
          .b = tokens_packed + t * padded.depth,
          .c = logits,
          .m = kTileRows,
          .n = kPanel,
          .k = padded.depth,
          .a_stride = rows.stride,
          .panel_stride = kPanel * padded.depth,
          .c_stride = kPanel,
          .add = false,
          .soon = share_of(soon, t / kPanel, padded.tokens / kPanel)});
      const auto panel = static_cast<size_t>(t / kPanel);
      take_entries(
          shape.entries->take(t / kPanel, row + kTileRows, next[panel]),
          row,
          logits,
          entry_logits);
      if (!kept)
        fold_logits(logits, valid, maximum + t, sum + t);
      else
        fold_and_keep_logits(
            logits,
            valid,
            maximum + t,
            sum + t,
            kept_tile(*kept, padded, row, t));
    }
  }
}

}  // namespace

bool quicker_to_keep_logits() {
  return !detail::has_tile_kind(detail::TileKind::kAmx);
}

KeptLogits kept_logits(const HeadShape& shape) {
  const PaddedHead padded(shape);
  const auto numel = static_cast<size_t>(padded.vocabulary * padded.tokens);
  return scratch_pieces(ScratchSlot::kLogits, [&](ScratchPieces& pieces) {
    return KeptLogits{
        pieces.take<uint16_t>(numel), pieces.take<float>(numel / kTileRows)};
  });
}

void head_statistics(
    const HeadShape& shape,
    const HeadTokenStatistics& result,
    const std::optional<KeptLogits>& kept) {
  const PaddedHead padded(shape);
  const auto [packed, maxima, sums] =
      scratch_pieces(ScratchSlot::kShared, [&](ScratchPieces& pieces) {
        return std::tuple{
            pieces.take<uint16_t>(padded.depth * padded.tokens),
            pieces.take<float>(kSegments * padded.tokens),
            pieces.take<float>(kSegments * padded.tokens)};
      });
  pack_columns(
      shape.hidden,
      shape.hidden_stride,
      shape.columns,
      shape.tokens,
      padded.depth,
      packed);
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
          result.entry_logits,
          kept);
  });
  for (int64_t t = 0; t < shape.tokens; ++t) {
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t segment = 0; segment < kSegments; ++segment)
      top = std::max(top, maxima[segment * padded.tokens + t]);
    float sum = 0;
    for (int64_t segment = 0; segment < kSegments; ++segment) {
      const int64_t i = segment * padded.tokens + t;
      if (sums[i] != 0)  // a NaN too
        sum += sums[i] * std::exp(maxima[i] - top);
    }
    result.maximum[t] = top;
    result.sum[t] = sum;
  }
}

}  // namespace brigade::ops
