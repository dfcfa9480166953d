// Blocked as Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication" (2008): a packed block of the right operand stays in the
// second-level cache, rows of the left one in the first while they meet it.
// Threads share the work by blocks of the result.
#include "brigade/kernels/cpu/linear_kernel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "brigade/base/check.h"
#include "brigade/kernels/cpu/ragged_kernel.h"
#include "brigade/kernels/cpu/scratch.h"
#include "brigade/kernels/cpu/tile_product.h"

namespace brigade::ops {
namespace {

constexpr int64_t kChunk = 288;       // depth of rows in the first-level cache
constexpr int64_t kBlockRows = 32;    // such rows
constexpr int64_t kSumColumns = 128;  // their sums are in that cache too
constexpr int64_t kPacked = 300'000;  // elements of a packed block
constexpr int64_t kColumns = 512;     // its columns at most,
constexpr int64_t kDepthAtOnce = 1024;  // and its depth
constexpr int64_t kRowsAtOnce = 1024;   // rows whose sums it is worth to keep
constexpr int64_t kTokensAtOnce = 1024;
constexpr int64_t kTransposed = 256;  // columns of output_grad in the cache
// So few tokens that the gradient's way from memory and back takes longest: it
// passes by in the order of memory, a few rows at a time, or with AMX by tiles
// that are added to where they lie (ragged_kernel.h).
constexpr int64_t kFewTokens = 128;
constexpr int64_t kPassingRows = 8;  // where output_grad is packed; else 32
constexpr int64_t kPassingColumns = 2048;  // at most

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// The i-th of `parts` about equal parts of [0, size), cut at multiples of
// `unit`.
Range part_of(int64_t size, int64_t unit, int64_t parts, int64_t i) {
  const int64_t units = (size + unit - 1) / unit;
  return {
      std::min(size, units * i / parts * unit),
      std::min(size, units * (i + 1) / parts * unit)};
}

// Even chunks of at most `most`, multiples of `unit`, of a size above 0.
int64_t even_chunk(int64_t size, int64_t most, int64_t unit) {
  const int64_t chunks = (size + most - 1) / most;
  return round_up((size + chunks - 1) / chunks, unit);
}

uint16_t* packed_scratch(ScratchSlot slot, int64_t numel) {
  return static_cast<uint16_t*>(
      scratch(slot, static_cast<size_t>(numel) * sizeof(uint16_t)));
}

// Calls body(height, width) for the parts, at most one a thread and none empty,
// of a grid over [0, height) in units of kPanel and [0, width) in units of
// kRowTile. The width is cut first, down to kNarrowest.
template <typename Body>
void for_grid(int64_t height, int64_t width, const Body& body) {
  constexpr int64_t kNarrowest = 64;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads();
  const int64_t across = std::clamp<int64_t>(width / kNarrowest, 1, threads);
  const int64_t down = std::max<int64_t>(1, threads / across);
  at::parallel_for(0, across * down, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Range some_height = part_of(height, kPanel, down, i / across);
      const Range some_width = part_of(width, kRowTile, across, i % across);
      if (some_height.size() > 0 && some_width.size() > 0)
        body(some_height, some_width);
    }
  });
}

// --- y = x weight^T, y = x weight -------------------------------------------

struct Block {
  Range rows, columns, depth;
};

void pack_weight(
    const LinearProduct& p,
    const Range& columns,
    const Range& depth,
    uint16_t* packed) {
  if (p.weight_in_rows)
    pack_rows(
        p.weight + depth.begin * p.columns + columns.begin,
        p.columns,
        depth.size(),
        columns.size(),
        depth.size(),
        packed);
  else
    pack_columns(
        p.weight + columns.begin * p.depth + depth.begin,
        p.depth,
        depth.size(),
        columns.size(),
        depth.size(),
        packed);
}

// A symmetric result is computed as far as the diagonal's last tile.
int64_t wanted_columns(const LinearProduct& p, const Block& block) {
  if (!p.is_symmetric)
    return block.columns.size();
  return std::min(block.columns.end, round_up(block.rows.end, kPanel)) -
         block.columns.begin;
}

// y's columns from `first` on, of sums that are complete.
void round_sums(
    const LinearProduct& p,
    const Block& block,
    const float* sums,
    int64_t first,
    int64_t columns) {
  for (int64_t row = 0; row < block.rows.size(); ++row) {
    const float* from = sums + row * block.columns.size() + first;
    const int64_t y_row = block.rows.begin + row;
    const int64_t column = block.columns.begin + first;
    uint16_t* to = p.y + y_row * p.y_stride + column;
    if (p.addend == nullptr)
      round_row(from, columns, to);
    else
      round_scaled_sum(
          {.a = from,
           .alpha = p.alpha,
           .b = p.addend + y_row * p.columns + column,
           .beta = p.beta},
          columns,
          to);
  }
}

// sums [rows, columns] = or += x's rows times the packed block, and y from them
// after the last depth, while the first-level cache still holds them.
void multiply_rows(
    const LinearProduct& p,
    const Block& block,
    const uint16_t* x,
    int64_t x_stride,
    const uint16_t* packed,
    float* sums) {
  const int64_t depth = block.depth.size();
  const int64_t chunk = even_chunk(depth, kChunk, kDepth);
  const int64_t wanted = wanted_columns(p, block);
  for (int64_t column = 0; column < wanted; column += kSumColumns) {
    const int64_t columns = std::min(kSumColumns, wanted - column);
    for (int64_t k = 0; k < depth; k += chunk) {
      tile_product(TileProduct<uint16_t>{
          .a = x + k,
          .b = packed + column * depth + k * kPanel,
          .c = sums + column,
          .m = round_up(block.rows.size(), kRowTile),
          .n = columns,
          .k = std::min(chunk, depth - k),
          .a_stride = x_stride,
          .panel_stride = depth * kPanel,
          .c_stride = block.columns.size(),
          .add = k + block.depth.begin > 0});
    }
    if (block.depth.end == p.depth)
      round_sums(p, block, sums, column, columns);
  }
}

// The last rows, less than a tile, from a copy filled up with zeros.
void multiply_last_rows(
    const LinearProduct& p,
    const Block& block,
    const uint16_t* packed,
    float* sums) {
  const int64_t depth = block.depth.size();
  alignas(64) uint16_t copy[kRowTile * kDepthAtOnce] = {};
  BRIGADE_ASSERT(
      block.rows.size() < kRowTile && depth <= kDepthAtOnce,
      "{} rows of {}",
      block.rows.size(),
      depth);
  for (int64_t row = 0; row < block.rows.size(); ++row)
    std::copy_n(
        p.x + (block.rows.begin + row) * p.x_stride + block.depth.begin,
        depth,
        copy + row * depth);
  multiply_rows(p, block, copy, depth, packed, sums);
}

void multiply_block(
    const LinearProduct& p,
    const Block& block,
    const uint16_t* packed,
    float* sums,
    bool keeps_sums) {
  for (int64_t row = block.rows.begin; row < block.rows.end;) {
    const int64_t left = block.rows.end - row;
    const int64_t count =
        left < kRowTile ? left
                        : std::min(kBlockRows, left / kRowTile * kRowTile);
    const Block some{{row, row + count}, block.columns, block.depth};
    float* to = keeps_sums
                    ? sums + (row - block.rows.begin) * block.columns.size()
                    : sums;
    if (count < kRowTile)
      multiply_last_rows(p, some, packed, to);
    else
      multiply_rows(
          p,
          some,
          p.x + row * p.x_stride + block.depth.begin,
          p.x_stride,
          packed,
          to);
    row += count;
  }
}

void linear_part(const LinearProduct& p, Range rows, Range columns) {
  const int64_t depth = even_chunk(p.depth, kDepthAtOnce, kDepth);
  const bool keeps_sums = depth < p.depth;
  const int64_t width = even_chunk(
      columns.size(), std::clamp(kPacked / depth, kPanel, kColumns), kPanel);
  const int64_t height = keeps_sums ? std::min(rows.size(), kRowsAtOnce)
                                    : std::min(rows.size(), kBlockRows);
  const auto [packed, sums] =
      scratch_pieces(ScratchSlot::kKernel, [&](ScratchPieces& pieces) {
        return std::tuple{
            pieces.take<uint16_t>(
                static_cast<size_t>(round_up(width, kPanel) * depth)),
            pieces.take<float>(
                static_cast<size_t>(round_up(height, kRowTile) * width))};
      });
  const TileSession session;
  const int64_t run = keeps_sums ? kRowsAtOnce : rows.size();
  for (int64_t row = rows.begin; row < rows.end; row += run) {
    const Range some{row, std::min(rows.end, row + run)};
    for (int64_t column = columns.begin; column < columns.end;
         column += width) {
      const Range wide{column, std::min(columns.end, column + width)};
      Range tall = some;
      if (p.is_symmetric)
        tall.begin = std::clamp(column, some.begin, some.end);
      for (int64_t k = 0; k < p.depth && tall.size() > 0; k += depth) {
        const Range deep{k, std::min(p.depth, k + depth)};
        pack_weight(p, wide, deep, packed);
        multiply_block(p, {tall, wide, deep}, packed, sums, keeps_sums);
      }
    }
  }
}

// The lower half by equal areas of columns, then the upper one from it.
void symmetric_product(const LinearProduct& p) {
  const int64_t parts = at::in_parallel_region() ? 1 : at::get_num_threads();
  const auto cut = [&](int64_t part) {
    const double left = 1 - static_cast<double>(part) / parts;
    const double columns = p.columns * (1 - std::sqrt(left));
    return part == parts
               ? p.columns
               : static_cast<int64_t>(columns / kPanel + 0.5) * kPanel;
  };
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    const Range columns{cut(begin), cut(end)};
    if (columns.size() > 0)
      linear_part(p, {columns.begin, p.rows}, columns);
  });
  at::parallel_for(0, p.rows / kPanel, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin * kPanel; row < end * kPanel; row += kPanel) {
      if (row > 0)
        transpose(
            p.y + row * p.y_stride,
            p.y_stride,
            kPanel,
            row,
            p.y + row,
            p.y_stride);
    }
  });
}

// --- weight_grad += output_grad^T x -----------------------------------------
// Both operands lie the wrong way round, tokens down instead of along: they are
// repacked, kTokensAtOnce of them at a time.

// A run of tokens, filled up with zeros to whole tiles.
struct Run {
  int64_t first, tokens, padded, chunk;
};

// output_grad's columns as tile_product() takes them on the left: packed, or
// transposed, [chunk][column][token of the chunk].
void turn_columns(
    const WeightProduct& p,
    const Run& run,
    const Range& columns,
    uint16_t* turned) {
  const uint16_t* first =
      p.output_grad + run.first * p.output_grad_stride + columns.begin;
  if (packed_left_fits()) {
    pack_rows(
        first,
        p.output_grad_stride,
        run.tokens,
        columns.size(),
        run.padded,
        turned);
    return;
  }
  for (int64_t t = 0; t < run.tokens; t += run.chunk) {
    const int64_t depth = std::min(run.chunk, run.tokens - t);
    uint16_t* chunk = turned + t * columns.size();
    transpose(
        first + t * p.output_grad_stride,
        p.output_grad_stride,
        depth,
        columns.size(),
        chunk,
        run.chunk);
    const int64_t zeros = round_up(depth, kDepth) - depth;
    for (int64_t column = 0; zeros > 0 && column < columns.size(); ++column)
      std::fill_n(chunk + column * run.chunk + depth, zeros, uint16_t{0});
  }
}

void add_columns(
    const WeightProduct& p,
    const Run& run,
    const uint16_t* x_packed,
    const Range& columns,
    const Range& inputs,
    const uint16_t* turned) {
  const bool packed = packed_left_fits();
  const bool passes = run.padded <= kFewTokens;
  const int64_t height = passes && packed ? kPassingRows : kBlockRows;
  const int64_t width =
      even_chunk(inputs.size(), passes ? kPassingColumns : kChunk, kPanel);
  const bool is_whole = passes && width == p.in;
  for (int64_t input = inputs.begin; input < inputs.end; input += width) {
    for (int64_t row = 0; row < columns.size(); row += height) {
      float* sums = p.weight_grad + (columns.begin + row) * p.in + input;
      const int64_t panel = row / kPanel * kPanel;
      Soon soon;
      if (is_whole)
        soon = {sums + height * p.in, height * p.in * 4, CacheLevel::kSecond};
      for (int64_t t = 0; t < run.padded; t += run.chunk) {
        tile_product(TileProduct<uint16_t>{
            .a = packed ? turned + panel * run.padded + t * kPanel +
                              2 * (row - panel)
                        : turned + t * columns.size() + row * run.chunk,
            .b = x_packed + input * run.padded + t * kPanel,
            .c = sums,
            .m = std::min(height, columns.size() - row),
            .n = std::min(width, inputs.end - input),
            .k = std::min(run.chunk, run.padded - t),
            .a_stride = packed ? run.padded * kPanel : run.chunk,
            .panel_stride = run.padded * kPanel,
            .c_stride = p.in,
            .add = true,
            .a_packed = packed,
            .soon = soon});
      }
    }
  }
}

void add_few_tokens(const WeightProduct& p) {
  auto* x =
      packed_scratch(ScratchSlot::kShared, p.in * round_up(p.tokens, kDepth));
  at::parallel_for(0, p.in / kPanel, 1, [&](int64_t begin, int64_t end) {
    detail::pack_tokens_amx(p, begin * kPanel, end * kPanel, x);
  });
  at::parallel_for(0, p.out / kPanel, 1, [&](int64_t begin, int64_t end) {
    const TileSession session;
    detail::add_weight_rows_amx(p, x, begin * kPanel, end * kPanel);
  });
}

bool whole_tiles(int64_t out, int64_t in) {
  return out > 0 && in > 0 && out % kDepth == 0 && in % kDepth == 0;
}

}  // namespace

bool has_linear_kernel(int64_t out, int64_t in) {
  return whole_tiles(out, in) &&
         (detail::has_tile_kind(detail::TileKind::kAmx) ||
          detail::has_tile_kind(detail::TileKind::kBfmmla));
}

bool has_weight_kernel(int64_t out, int64_t in) {
  return whole_tiles(out, in) &&
         (detail::has_tile_kind(detail::TileKind::kAmx) ||
          detail::has_tile_kind(detail::TileKind::kAvx512Bf16) ||
          detail::has_tile_kind(detail::TileKind::kBfmmla));
}

void linear_product(const LinearProduct& p) {
  BRIGADE_ASSERT(
      p.addend != nullptr || p.alpha == 1,
      "{} times a product to which nothing is added",
      p.alpha);
  if (p.is_symmetric) {
    BRIGADE_ASSERT(
        p.rows == p.columns && p.rows % kPanel == 0,
        "{} x {} is symmetric",
        p.rows,
        p.columns);
    symmetric_product(p);
    return;
  }
  for_grid(p.rows, p.columns, [&](const Range& rows, const Range& columns) {
    linear_part(p, rows, columns);
  });
}

void add_weight_product(const WeightProduct& p) {
  if (p.tokens == 0)
    return;
  if (p.tokens <= kFewTokens && detail::has_tile_kind(detail::TileKind::kAmx)) {
    add_few_tokens(p);
    return;
  }
  const int64_t most = round_up(std::min(kTokensAtOnce, p.tokens), kDepth);
  auto* x_packed =
      packed_scratch(ScratchSlot::kShared, round_up(p.in, kPanel) * most);
  for (int64_t first = 0; first < p.tokens; first += kTokensAtOnce) {
    const int64_t tokens = std::min(kTokensAtOnce, p.tokens - first);
    const int64_t padded = round_up(tokens, least_depth());
    const Run run{first, tokens, padded, even_chunk(tokens, kChunk, kDepth)};
    at::parallel_for(0, p.in / kPanel, 1, [&](int64_t begin, int64_t end) {
      const int64_t column = begin * kPanel;
      pack_rows(
          p.x + first * p.x_stride + column,
          p.x_stride,
          tokens,
          end * kPanel - column,
          padded,
          x_packed + column * padded);
    });
    for_grid(p.in, p.out, [&](const Range& inputs, const Range& outputs) {
      auto* turned = packed_scratch(
          ScratchSlot::kKernel, kTransposed * round_up(padded, run.chunk));
      const TileSession session;
      for (int64_t column = outputs.begin; column < outputs.end;
           column += kTransposed) {
        const Range columns{
            column, std::min(outputs.end, column + kTransposed)};
        turn_columns(p, run, columns, turned);
        add_columns(p, run, x_packed, columns, inputs, turned);
      }
    });
  }
}

}  // namespace brigade::ops
