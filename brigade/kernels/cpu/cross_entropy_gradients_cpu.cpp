// The head's second sweep: the gradients of logits, a tile at a time, and their
// products with hidden and weight.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "brigade/kernels/cpu/cross_entropy_kernel.h"
#include "brigade/kernels/cpu/cross_entropy_padding_kernel.h"
#include "brigade/kernels/cpu/scratch.h"

namespace brigade::ops {
namespace {

constexpr int64_t kGradientTokens = 256;

uint16_t to_bf16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// What one thread works with while it makes gradients.
struct GradientBuffers {
  uint16_t* copy;      // weight rows, where they must be padded
  uint16_t* weight_t;  // [C, block], or packed as such a left operand
  float* logits;       // [kTileRows, kPanel]
  uint16_t* gradient;  // [block, kGradientTokens]
  uint16_t* pairs;     // the same, pairs of rows
  float* dweight;      // [block, C]
  size_t* next;        // by panel: the first entry that is to come
};

struct GradientWork {
  const HeadShape& shape;
  const HeadGradients& result;
  const std::optional<KeptLogits>& kept;  // none: logits are made once more
  PaddedHead padded;
  int64_t block;              // vocabulary entries at a time
  const uint16_t* by_column;  // hidden, packed for logits
  const uint16_t* by_row;     // hidden, packed for the weight's gradient
  const float* lse;           // padded
  const float* factor;        // padded
};

// The gradient of the logits of kTileRows entries of the vocabulary, from entry
// `first` on, and of the kPanel tokens from token t on.
void logit_gradients(
    const GradientWork& work,
    const WeightRows& rows,
    int64_t first,
    int64_t t,
    const GradientBuffers& buffers,
    uint16_t* out,
    uint16_t* pairs) {
  const HeadShape& shape = work.shape;
  const GradientTile tile{
      work.lse + t, work.factor + t, out, kGradientTokens, pairs};
  if (work.kept) {
    gradient_tile(kept_tile(*work.kept, work.padded, first, t), tile);
  } else {
    tile_product(TileProduct<uint16_t>{
        .a = rows.data,
        .b = work.by_column + t * work.padded.depth,
        .c = buffers.logits,
        .m = kTileRows,
        .n = kPanel,
        .k = work.padded.depth,
        .a_stride = rows.stride,
        .panel_stride = kPanel * work.padded.depth,
        .c_stride = kPanel,
        .add = false});
    gradient_tile(buffers.logits, tile);
  }
  const auto put = [&](int64_t entry, int64_t i, uint16_t value) {
    out[entry * kGradientTokens + i] = value;
    pairs[entry / 2 * 2 * kPanel + i * 2 + entry % 2] = value;
  };
  const int64_t panel = t / kPanel;
  for (const HeadEntry& entry :
       shape.entries->take(panel, first + kTileRows, buffers.next[panel]))
    put(entry.row - first,
        entry.column,
        to_bf16(work.result.entry_gradients[entry.place]));
  // Rows beyond the vocabulary have no probability.
  const int64_t valid = std::max<int64_t>(0, shape.vocabulary - first);
  for (int64_t entry = valid; entry < kTileRows; ++entry) {
    for (int64_t i = 0; i < kPanel; ++i)
      put(entry, i, 0);
  }
}

// The transpose of a block of the weight, as tile_product() takes it on the
// left.
struct WeightColumns {
  const uint16_t* data;
  int64_t stride;
  bool packed;
};

WeightColumns weight_columns(
    const GradientWork& work,
    const WeightRows& rows,
    int64_t numel,
    uint16_t* to) {
  const int64_t columns = work.shape.columns;
  if (packed_left_fits()) {
    pack_rows(rows.data, rows.stride, numel, columns, numel, to);
    return {to, kPanel * numel, true};
  }
  transpose(rows.data, rows.stride, numel, columns, to, work.block);
  std::fill_n(
      to + columns * work.block,
      (work.padded.columns - columns) * work.block,
      uint16_t{0});
  return {to, work.block, false};
}

// Where a block's gradient of the weight is summed up. On AMX that is quicker
// in a buffer; what is padded needs one everywhere.
bool sums_in_place(const GradientWork& work, int64_t first, int64_t numel) {
  return work.result.dweight != nullptr &&
         !detail::has_tile_kind(detail::TileKind::kAmx) &&
         first + numel <= work.shape.vocabulary &&
         work.padded.columns == work.shape.columns;
}

// The kept logits of the block from `first` on, where they are few enough to
// wait in cache.
Soon kept_soon(const GradientWork& work, int64_t first) {
  const int64_t entries = std::min(work.block, work.padded.vocabulary - first);
  if (!work.kept || entries <= 0 || work.padded.tokens > kGradientTokens)
    return {};
  return {
      kept_tile(*work.kept, work.padded, first, 0).exponentials,
      entries * work.padded.tokens * static_cast<int64_t>(sizeof(uint16_t))};
}

void block_gradients(
    const GradientWork& work,
    int64_t first,
    const GradientBuffers& buffers,
    float* dhidden_t) {
  const HeadShape& shape = work.shape;
  const PaddedHead& padded = work.padded;
  const int64_t numel =
      std::min(work.block, round_up(shape.vocabulary - first, kTileRows));
  const WeightRows rows =
      weight_rows(shape, first, numel, padded.depth, buffers.copy);
  const WeightColumns left =
      dhidden_t == nullptr
          ? WeightColumns{}
          : weight_columns(work, rows, numel, buffers.weight_t);
  const bool in_place = sums_in_place(work, first, numel);
  const Soon next_rows = weight_soon(shape, first + numel, work.block);
  const Soon next_kept = kept_soon(work, first + numel);
  float* dweight =
      in_place ? work.result.dweight + first * shape.columns : buffers.dweight;
  for (int64_t t = 0; t < padded.tokens; t += kGradientTokens) {
    const int64_t width = std::min(kGradientTokens, padded.tokens - t);
    const bool is_last = t + width == padded.tokens;
    for (int64_t row = 0; row < numel; row += kTileRows) {
      const WeightRows tile{rows.data + row * rows.stride, rows.stride};
      for (int64_t i = 0; i < width; i += kPanel)
        logit_gradients(
            work,
            tile,
            first + row,
            t + i,
            buffers,
            buffers.gradient + row * kGradientTokens + i,
            buffers.pairs + i * work.block + row * kPanel);
    }
    if (work.result.dweight != nullptr)
      tile_product(TileProduct<uint16_t>{
          .a = buffers.gradient,
          .b = work.by_row + t * kPanel,
          .c = dweight,
          .m = numel,
          .n = padded.columns,
          .k = width,
          .a_stride = kGradientTokens,
          .panel_stride = kPanel * padded.tokens,
          .c_stride = padded.columns,
          .add = in_place || t > 0,
          .soon = is_last ? next_kept : Soon{}});
    if (dhidden_t != nullptr)
      tile_product(TileProduct<uint16_t>{
          .a = left.data,
          .b = buffers.pairs,
          .c = dhidden_t + t,
          .m = padded.columns,
          .n = width,
          .k = numel,
          .a_stride = left.stride,
          .panel_stride = kPanel * work.block,
          .c_stride = padded.tokens,
          .add = true,
          .a_packed = left.packed,
          .soon = is_last ? next_rows : Soon{}});
  }
  if (work.result.dweight == nullptr || in_place)
    return;
  const int64_t valid = std::min(numel, shape.vocabulary - first);
  for (int64_t row = 0; row < valid; ++row)
    add_row(
        buffers.dweight + row * padded.columns,
        shape.columns,
        work.result.dweight + (first + row) * shape.columns);
}

// Sums the threads' parts [C, tokens] and stores them as rows of bf16.
void store_dhidden(
    const HeadShape& shape,
    const PaddedHead& padded,
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
              add_row(
                  parts + thread * part + column * padded.tokens + t,
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
            round_row(
                rows + i * padded.columns,
                shape.columns,
                dhidden + (t + i) * shape.columns);
        }
      });
}

// What all threads read while gradients are made, and their sums of dhidden.
struct SharedBuffers {
  uint16_t* by_column;  // hidden, packed for logits
  uint16_t* by_row;     // hidden, packed for the weight's gradient
  float* lse;           // padded
  float* factor;        // padded
  float* parts;         // [threads][C, tokens]; none without dhidden
};

SharedBuffers shared_buffers(
    const HeadShape& shape,
    const PaddedHead& padded,
    int64_t parts_numel) {
  SharedBuffers b{};
  scratch_pieces(ScratchSlot::kShared, [&](ScratchPieces& pieces) {
    b.by_column = pieces.take<uint16_t>(padded.depth * padded.tokens);
    b.by_row =
        pieces.take<uint16_t>(round_up(shape.columns, kPanel) * padded.tokens);
    b.lse = pieces.take<float>(padded.tokens);
    b.factor = pieces.take<float>(padded.tokens);
    b.parts = pieces.take<float>(parts_numel);
  });
  return b;
}

void fill(
    const SharedBuffers& b,
    const HeadShape& shape,
    const HeadGradients& result,
    const PaddedHead& padded,
    int64_t parts_numel) {
  pack_columns(
      shape.hidden,
      shape.hidden_stride,
      shape.columns,
      shape.tokens,
      padded.depth,
      b.by_column);
  pack_rows(
      shape.hidden,
      shape.hidden_stride,
      shape.tokens,
      shape.columns,
      padded.tokens,
      b.by_row);
  std::fill_n(b.lse, padded.tokens, 0.0F);
  std::fill_n(b.factor, padded.tokens, 0.0F);
  std::copy_n(result.lse, shape.tokens, b.lse);
  std::copy_n(result.factor, shape.tokens, b.factor);
  std::fill_n(b.parts, parts_numel, 0.0F);
}

// The calling thread's, for blocks of the weight of `block` entries.
GradientBuffers gradient_buffers(
    const HeadShape& shape,
    const PaddedHead& padded,
    int64_t block) {
  GradientBuffers buffers{};
  scratch_pieces(ScratchSlot::kKernel, [&](ScratchPieces& pieces) {
    buffers.copy = pieces.take<uint16_t>(block * padded.depth);
    buffers.weight_t =
        pieces.take<uint16_t>(round_up(shape.columns, kPanel) * block);
    buffers.logits = pieces.take<float>(kTileRows * kPanel);
    buffers.gradient = pieces.take<uint16_t>(block * kGradientTokens);
    buffers.pairs = pieces.take<uint16_t>(block * kGradientTokens);
    buffers.dweight = pieces.take<float>(block * padded.columns);
  });
  return buffers;
}

}  // namespace

void head_gradients(
    const HeadShape& shape,
    const HeadGradients& result,
    const std::optional<KeptLogits>& kept) {
  const PaddedHead padded(shape);
  constexpr int64_t kBlockNumel = 112'000;  // of weight: 0.2 MB of cache
  const int64_t block = std::clamp<int64_t>(
      kBlockNumel / shape.columns / kTileRows * kTileRows, kTileRows, 512);
  const int64_t blocks = (shape.vocabulary + block - 1) / block;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t part = padded.columns * padded.tokens;
  const int64_t parts_numel = result.dhidden == nullptr ? 0 : threads * part;
  const SharedBuffers shared = shared_buffers(shape, padded, parts_numel);
  fill(shared, shape, result, padded, parts_numel);
  const GradientWork work{
      shape,
      result,
      kept,
      padded,
      block,
      shared.by_column,
      shared.by_row,
      shared.lse,
      shared.factor};
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<size_t> next = shape.entries->from(begin * block);
    GradientBuffers buffers = gradient_buffers(shape, padded, block);
    buffers.next = next.data();
    float* dhidden_t = result.dhidden == nullptr
                           ? nullptr
                           : shared.parts + at::get_thread_num() * part;
    const TileSession session;
    for (int64_t i = begin; i < end; ++i)
      block_gradients(work, i * block, buffers, dhidden_t);
  });
  if (result.dhidden != nullptr)
    store_dhidden(shape, padded, shared.parts, threads, result.dhidden);
}

}  // namespace brigade::ops
