// Attention over some keys and over some others, made into attention over both
// (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"):
//   lse = log(exp(lse_a) + exp(lse_b))
//   out = out_a exp(lse_a - lse) + out_b exp(lse_b - lse)
// and the gradients of such parts, which add up.
#pragma once

#include <optional>

#include "brigade/ops/attention.h"

namespace brigade {

// Merges `part` into `whole`, in place; whole may be a slice along Tq of a
// larger result. Both float32 (or double). A query that sees no key in one of
// them (lse = -infinity) keeps the other's result exactly.
void merge_partials(
    ops::AttentionResult whole,
    const ops::AttentionResult& part);

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
