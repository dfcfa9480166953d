// Attention over some keys and over some others, made into attention over both
// (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"):
//   lse = log(exp(lse_a) + exp(lse_b))
//   out = out_a exp(lse_a - lse) + out_b exp(lse_b - lse)
#pragma once

#include "brigade/ops/attention.h"

namespace brigade {

// Merges `part` into `whole`, in place; whole may be a slice along Tq of a
// larger result. Both float32 (or double). A query that sees no key in one of
// them (lse = -infinity) keeps the other's result exactly.
void merge_partials(
    ops::AttentionResult whole,
    const ops::AttentionResult& part);

}  // namespace brigade
