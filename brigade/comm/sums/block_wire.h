// Quantization of float32 values for sending: blocks of neighbours whose
// integers share one scale. Works on ranges of memory, on the calling thread.
//
//   kFp32  256 values in 1024 bytes, as they are
//   kBf16  256 values in 512 bytes
//   kInt8  a float32 scale and 256 of -127 ... 127: 260 bytes
//   kInt4  a float32 scale and 128 of -7 ... 7: 68 bytes
//   kInt2  a float32 scale and 256 of 4 levels: 68 bytes
//
// The scale is the largest magnitude of the block over 127 or 7; values are
// rounded to the nearest. A block with a value that is not finite is decoded as
// NaNs, so that it is not taken for numbers.
//
// The levels of kInt2 are +-0.4528 and +-1.510, which have the least mean
// square error of all sets of four levels for normally distributed values (Max
// 1960, Lloyd 1982), 0.1175 of their variance. A value is rounded to the
// nearest level times the block's root mean square; the scale that is sent is
// then the one with the least square error, so that every block sends
// something, as error feedback needs.
#pragma once

#include <cstdint>

#include "brigade/options/wire_format.h"

namespace brigade {

int64_t block_numel(WireFormat format);
int64_t block_bytes(WireFormat format);

// Writes block_bytes(format) bytes. count: at most block_numel(format).
void encode_block(
    WireFormat format,
    const float* values,
    int64_t count,
    uint8_t* block);

// The first `count` values of a block.
void decode_block(
    WireFormat format,
    const uint8_t* block,
    int64_t count,
    float* values);

}  // namespace brigade
