// The values of GGUF's tensors, to and from float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "brigade/gguf/format.h"

namespace brigade {

// IEEE 754 binary16 and bfloat16, rounded to nearest even.
uint16_t float16_bits(float value);
float float_of_float16(uint16_t bits);
uint16_t bfloat16_bits(float value);
float float_of_bfloat16(uint16_t bits);

// The same bits that ggml makes of them. `name` is for errors. Throws DataError
// naming the tensor where a value is too large for the type. Precondition: of
// whole blocks.
std::vector<std::byte> encode_gguf(
    std::span<const float> values,
    GgufType type,
    const std::string& name);

// Precondition: `data` has exactly the blocks of values.size() values.
void decode_gguf(
    std::span<const std::byte> data,
    GgufType type,
    std::span<float> values);

}  // namespace brigade
