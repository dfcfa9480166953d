// Products of rows with the weights of their experts, in bf16: of each weight
// few rows, any number of them, so that packing it would take longer than it
// saves. Weights are read where they lie. With AMX or AVX512-BF16.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/kernels/cpu/linear_kernel.h"
#include "brigade/kernels/cpu/tile_product.h"

namespace brigade::ops {

// Whether this processor, that many rows and weights of [out, in] are what
// ragged_products() takes. With AMX, linear_product() multiplies more than 128
// rows quicker; an element has the same bits.
bool has_ragged_kernel(int64_t rows, int64_t out, int64_t in);

// Each product, one after the other. By the calling thread's team, which shares
// columns, so that threads have equal work however rows are divided. An element
// depends on neither the number of threads nor that of rows.
void ragged_products(const std::vector<LinearProduct>& products);

namespace detail {

// By kAmx or kAvx512Bf16.
void ragged_products(const std::vector<LinearProduct>& products, TileKind kind);

// Columns [begin, end) of p, multiples of kPanel; `following` is what the
// caller reads next.
void ragged_part_avx512_bf16(
    const LinearProduct& p,
    int64_t begin,
    int64_t end,
    const uint16_t* following);
void ragged_part_amx(const LinearProduct& p, int64_t begin, int64_t end);

// Columns [begin, end) of x of few tokens for the next: tiles [in / 16]
// [tokens / 32] of 16 pairs of tokens by 16 columns.
void pack_tokens_amx(
    const WeightProduct& p,
    int64_t begin,
    int64_t end,
    uint16_t* packed);
// weight_grad's rows [begin, end), multiples of kPanel.
void add_weight_rows_amx(
    const WeightProduct& p,
    const uint16_t* x,
    int64_t begin,
    int64_t end);

}  // namespace detail

}  // namespace brigade::ops
