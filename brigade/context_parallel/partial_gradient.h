// Gradients of attention over parts of the keys, which add up.
#pragma once

#include <optional>

#include "brigade/ops/attention.h"

namespace brigade {

// sum += other (rotated back where `rotary`, with a row for each token, is
// given), rounded once. sum, other: [B, T, H, D] of one float dtype.
void add_partial_gradient(
    torch::Tensor sum,
    const torch::Tensor& other,
    const std::optional<ops::RotaryTable>& rotary);

}  // namespace brigade
