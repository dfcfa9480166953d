// The CPU kernel of ops/stochastic_rounding.h, on the calling thread.
#pragma once

#include <cstdint>

namespace brigade::ops {

// `values` are neighbours in the whole tensor, from its element `place` on.
void stochastic_rounding_kernel(
    const float* values,
    int64_t numel,
    uint64_t key,
    uint64_t place,
    uint16_t* rounded);

}  // namespace brigade::ops
