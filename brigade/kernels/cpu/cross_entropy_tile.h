// The vector loops over a tile of the fused head's logits: kTileRows rows, each
// an entry of the vocabulary, by kPanel columns, each a token. The tile, the
// weight rows and the tokens that it is made of lie in the first-level cache.
#pragma once

#include <cstdint>

#include "brigade/kernels/cpu/tile_product.h"

namespace brigade::ops {

constexpr int64_t kTileRows = 32;

// A tile of logits as exponentials of how far each lies below a maximum of its
// column, in 16 bits: 5 of exponent, 11 of mantissa. One is off by 2.4e-4 at
// most, an eighth of the error of rounding to bf16; below 2^-31 it counts as
// that.
struct KeptTile {
  uint16_t* exponentials;  // [kTileRows, kPanel]
  float* maximum;          // [kPanel]
};

// Folds the first `rows` rows of logits [kTileRows, kPanel] into the running
// maximum and sum of exp(logit - maximum) of each column.
void fold_logits(const float* logits, int64_t rows, float* maximum, float* sum);
// The same, and keeps those rows.
void fold_and_keep_logits(
    const float* logits,
    int64_t rows,
    float* maximum,
    float* sum,
    const KeptTile& kept);

// What the gradients factor * exp(logit - lse) of a tile are made with and go
// to: rows of bf16 out_stride apart, and pairs of rows (rows 2i and 2i + 1 side
// by side, packed as tile_product.h says).
struct GradientTile {
  const float* lse;     // [kPanel]
  const float* factor;  // [kPanel]
  uint16_t* out;
  int64_t out_stride;
  uint16_t* pairs;
};
void gradient_tile(const float* logits, const GradientTile& tile);
void gradient_tile(const KeptTile& kept, const GradientTile& tile);

// to += from.
void add_row(const float* from, int64_t numel, float* to);

// row[i] = exp(row[i] - maximum); returns the sum.
float exp_row(float* row, int64_t numel, float maximum);

}  // namespace brigade::ops
