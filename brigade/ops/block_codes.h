// Float32 values in a byte each: block-wise quantisation with a dynamic map
// (Dettmers et al. 2021, arXiv:2110.02861), with bitsandbytes' codes, scales
// and map. A block's scale is its largest magnitude, and a value is stored as
// the nearest entry of a map of 256 numbers in [-1, 1], times the scale. In
// each decade below 1 entries are evenly spaced, towards 0 fewer of them:
//
//   signed    int8, entry - 128: from -0.993 to 1, the least above 0 5.5e-7
//   unsigned  uint8, the entry: from 0 to 1, the least above 0 3.25e-7
//
// The dtype of codes says which map. Blocks are of kBlockNumel consecutive
// elements from the first on; the last one may be shorter. A block whose scale
// would be below kLeastBlockScale is all zeros.
#pragma once

#include <torch/types.h>

#include <array>

#include "brigade/ops/op_options.h"
#include "brigade/options/optimizer_states.h"

namespace brigade::ops {

using torch::Tensor;

// 2^-104: entries times this are still normal numbers.
inline constexpr float kLeastBlockScale = 0x1p-104F;

// Ascending. codes: torch::kChar or torch::kByte.
const std::array<float, 256>& dynamic_map(torch::ScalarType codes);

// Whether a tensor of that dtype can be codes.
inline bool is_codes(torch::ScalarType dtype) {
  return dtype == torch::kChar || dtype == torch::kByte;
}

// Float32 of the codes' shape. codes: contiguous, scales: float32
// [count_blocks()].
Tensor decode_blocks(
    const Tensor& codes,
    const Tensor& scales,
    Kernels kernels = Kernels::kAuto);

// The same, but -1 times the scale for the lowest signed code, which a block's
// negative extreme has: encode_blocks() of these values gives the same codes
// and scales again.
Tensor recodable_values(
    const Tensor& codes,
    const Tensor& scales,
    Kernels kernels = Kernels::kAuto);

// Writes codes and scales. values: float32 of the codes' shape, contiguous. A
// block with a value that is not finite comes back as NaN.
void encode_blocks(
    const Tensor& values,
    Tensor codes,
    Tensor scales,
    Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
