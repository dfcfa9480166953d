// The formats in which float32 values are sent, by bits
// (comm/sums/block_wire.h); distributed.outer_wire. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

enum class WireFormat { kFp32, kBf16, kInt8, kInt4, kInt2 };
template <>
inline constexpr std::array kChoices<WireFormat>{
    Choice{WireFormat::kFp32, "fp32"},
    Choice{WireFormat::kBf16, "bf16"},
    Choice{WireFormat::kInt8, "int8"},
    Choice{WireFormat::kInt4, "int4"},
    Choice{WireFormat::kInt2, "int2"}};

}  // namespace brigade
