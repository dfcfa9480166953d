// The fused head in bf16 on the CPU: logits exist one tile at a time, as
// [vocabulary, tokens], so that rows of the weight are used as they lie and
// maxima and sums over the vocabulary are vertical.
//
// Two sweeps over the vocabulary: the first finds each token's maximum and sum
// of exponentials; the second makes the logits once more, turns them into
// gradients and multiplies these at once. That is a third more arithmetic than
// keeping the logits, and no traffic for them.
#pragma once

#include <cstdint>

namespace brigade::ops {

struct HeadShape {
  int64_t tokens;      // N
  int64_t columns;     // C
  int64_t vocabulary;  // valid rows of the weight
  const uint16_t* hidden;
  int64_t hidden_stride;
  const uint16_t* weight;
  int64_t weight_stride;
  const int64_t* target;  // [N], row of this weight; -1: none of them
};

// Per token over this weight's rows: the maximum logit, the sum of
// exp(logit - maximum), and the target's logit (0 where target is -1).
struct HeadStatistics {
  float* maximum;
  float* sum;
  float* target_logit;
};
void head_statistics(const HeadShape& shape, const HeadStatistics& result);

// With gradient of a logit = factor * (exp(logit - lse) - [is target]):
struct HeadGradients {
  const float* lse;     // [N]
  const float* factor;  // [N]
  uint16_t* dhidden;    // [N, C] dense, overwritten; null: not wanted
  float* dweight;       // [V, C] dense, added to; null: not wanted
};
void head_gradients(const HeadShape& shape, const HeadGradients& result);

}  // namespace brigade::ops
