// Gradients of attention over parts of the keys, which add up.
#pragma once

#include <optional>

#include "brigade/ops/attention.h"

namespace brigade {

// A gradient over some tokens of a rank, float32 (or double).
struct PartialGradient {
  torch::Tensor values;  // [B, tokens, H, D]; undefined: there is none
  int64_t first_token = 0;
  // Given where the values are of rotated heads: a row for each token.
  std::optional<ops::RotaryTable> rotary;
};

// sum = own + other (rotated back), rounded once. sum: [B, T, H, D], any float
// dtype; own: the same, float32 (or double).
void add_partial_gradient(
    torch::Tensor sum,
    const torch::Tensor& own,
    const PartialGradient& other);

}  // namespace brigade
