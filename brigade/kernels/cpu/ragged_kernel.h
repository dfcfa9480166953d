// Products of rows with the weights of their experts, in bf16: of each weight
// few rows, any number of them, so that packing it would take longer than it
// saves. Weights are read where they lie, once for all rows if these are few,
// and what is read next is asked for meanwhile. With AVX512-BF16.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/kernels/cpu/linear_kernel.h"

namespace brigade::ops {

// Whether this processor, that many rows and weights of [out, in] are what
// ragged_products() takes. Where there is AMX, its tiles multiply
// kFewestTileRows rows and more quicker.
bool has_ragged_kernel(int64_t rows, int64_t out, int64_t in);

// Each product, one after the other. By the calling thread's team, which shares
// columns, so that threads have equal work however rows are divided. An element
// depends on neither the number of threads nor that of rows.
void ragged_products(const std::vector<LinearProduct>& products);

namespace detail {

// Columns [begin, end) of p; `following` is what the caller reads next.
void ragged_part_avx512_bf16(
    const LinearProduct& p,
    int64_t begin,
    int64_t end,
    const uint16_t* following);

}  // namespace detail

}  // namespace brigade::ops
