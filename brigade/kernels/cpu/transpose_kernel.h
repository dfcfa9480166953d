// Words of 32 bits transposed, whatever they hold: floats or pairs of bf16.
#pragma once

#include <cstdint>

namespace brigade::ops {

// [rows, columns] to [columns, rows]; strides in words.
void transpose_words(
    const void* from,
    int64_t from_stride,
    int64_t rows,
    int64_t columns,
    void* to,
    int64_t to_stride);

}  // namespace brigade::ops
