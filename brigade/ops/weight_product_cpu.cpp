#include <ATen/Parallel.h>

#include <algorithm>

#include "brigade/ops/scratch.h"
#include "brigade/ops/tile_product.h"
#include "brigade/ops/weight_product_kernel.h"

namespace brigade::ops {
namespace {

// Both operands lie the wrong way round, tokens down instead of along: they
// are packed anew, kTokens of them at a time. In a chunk of kChunk tokens, the
// transposed rows of a block stay in the first-level cache while panels of x
// and sums pass by from the second-level one, which holds kOutputs transposed
// columns of output_grad and kInputs packed columns of x.
constexpr int64_t kTokens = 1024;
constexpr int64_t kChunk = 256;
constexpr int64_t kBlockRows = 32;
constexpr int64_t kOutputs = 256;
constexpr int64_t kInputs = 288;

// A run of at most kTokens tokens, filled up with zeros to whole tiles.
struct Run {
  int64_t first, tokens, padded;
};

struct Columns {
  int64_t begin, end;
};

// output_grad's columns, [chunk][column][token of the chunk].
void transpose_columns(
    const WeightProduct& p,
    const Run& run,
    Columns columns,
    uint16_t* transposed) {
  const int64_t count = columns.end - columns.begin;
  for (int64_t t = 0; t < run.tokens; t += kChunk) {
    const int64_t depth = std::min(kChunk, run.tokens - t);
    uint16_t* chunk = transposed + t * count;
    transpose(
        p.output_grad + (run.first + t) * p.output_grad_stride + columns.begin,
        p.output_grad_stride,
        depth,
        count,
        chunk,
        kChunk);
    const int64_t zeros = round_up(depth, kDepth) - depth;
    for (int64_t column = 0; zeros > 0 && column < count; ++column)
      std::fill_n(chunk + column * kChunk + depth, zeros, uint16_t{0});
  }
}

void add_columns(
    const WeightProduct& p,
    const Run& run,
    const uint16_t* x_packed,
    Columns columns,
    const uint16_t* transposed) {
  const int64_t count = columns.end - columns.begin;
  const int64_t parts = (p.in + kInputs - 1) / kInputs;
  const int64_t width = round_up((p.in + parts - 1) / parts, kPanel);
  for (int64_t input = 0; input < p.in; input += width) {
    for (int64_t row = 0; row < count; row += kBlockRows) {
      for (int64_t t = 0; t < run.padded; t += kChunk) {
        tile_product(TileProduct<uint16_t>{
            .a = transposed + t * count + row * kChunk,
            .b = x_packed + input * run.padded + t * kPanel,
            .c = p.weight_grad + (columns.begin + row) * p.in + input,
            .m = std::min(kBlockRows, count - row),
            .n = std::min(width, p.in - input),
            .k = std::min(kChunk, run.padded - t),
            .a_stride = kChunk,
            .panel_stride = run.padded * kPanel,
            .c_stride = p.in,
            .add = true});
      }
    }
  }
}

}  // namespace

bool has_weight_product(int64_t out, int64_t in) {
  return detail::has_tile_kind(detail::TileKind::kAmx) && out % kRowTile == 0 &&
         in % kRowTile == 0;
}

void add_weight_product(const WeightProduct& p) {
  const int64_t panels = (p.in + kPanel - 1) / kPanel;
  const int64_t blocks = (p.out + kBlockRows - 1) / kBlockRows;
  const int64_t most = round_up(std::min(kTokens, p.tokens), kDepth);
  auto* x_packed = static_cast<uint16_t*>(scratch(
      ScratchSlot::kShared,
      static_cast<size_t>(panels * kPanel * most) * sizeof(uint16_t)));
  for (int64_t first = 0; first < p.tokens; first += kTokens) {
    const int64_t tokens = std::min(kTokens, p.tokens - first);
    const Run run{first, tokens, round_up(tokens, kDepth)};
    at::parallel_for(0, panels, 1, [&](int64_t begin, int64_t end) {
      const int64_t column = begin * kPanel;
      pack_rows(
          p.x + first * p.x_stride + column,
          p.x_stride,
          tokens,
          std::min(end * kPanel, p.in) - column,
          run.padded,
          x_packed + column * run.padded);
    });
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      auto* transposed = static_cast<uint16_t*>(scratch(
          ScratchSlot::kKernel,
          static_cast<size_t>(kOutputs * round_up(run.padded, kChunk)) *
              sizeof(uint16_t)));
      const TileSession session;
      const int64_t last = std::min(end * kBlockRows, p.out);
      for (int64_t column = begin * kBlockRows; column < last;
           column += kOutputs) {
        const Columns columns{column, std::min(last, column + kOutputs)};
        transpose_columns(p, run, columns, transposed);
        add_columns(p, run, x_packed, columns, transposed);
      }
    });
  }
}

}  // namespace brigade::ops
