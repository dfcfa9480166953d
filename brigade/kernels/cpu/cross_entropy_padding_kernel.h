// The padded operands that both sweeps of the fused head work on.
#pragma once

#include <cstdint>

#include "brigade/kernels/cpu/cross_entropy_kernel.h"
#include "brigade/kernels/cpu/cross_entropy_tile.h"
#include "brigade/kernels/cpu/tile_product.h"

namespace brigade::ops {

// The sizes, rounded up to what tile_product() takes.
struct PaddedHead {
  explicit PaddedHead(const HeadShape& shape)
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
    uint16_t* copy);

// Those rows where they lie, as many as there are, for who will read them.
Soon weight_soon(const HeadShape& shape, int64_t begin, int64_t numel);

// The tile of the vocabulary's entries from `row` on and tokens from t on.
KeptTile kept_tile(
    const KeptLogits& kept,
    const PaddedHead& padded,
    int64_t row,
    int64_t t);

}  // namespace brigade::ops
