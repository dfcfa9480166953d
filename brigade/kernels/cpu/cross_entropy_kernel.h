// The fused head in bf16 on the CPU: logits exist one tile at a time, as
// [vocabulary, tokens], so that rows of the weight are used as they lie and
// maxima and sums over the vocabulary are vertical.
//
// Two sweeps over the vocabulary: the first finds each token's maximum and sum
// of exponentials; the second turns logits into gradients and multiplies these
// at once. It makes the logits once more, a third more arithmetic and no
// traffic for them, or reads what the first has kept of them in 16 bits.
#pragma once

#include <cstdint>
#include <optional>

#include "brigade/kernels/cpu/cross_entropy_entries_kernel.h"

namespace brigade::ops {

struct HeadShape {
  int64_t tokens;      // N
  int64_t columns;     // C
  int64_t vocabulary;  // valid rows of the weight
  const uint16_t* hidden;
  int64_t hidden_stride;
  const uint16_t* weight;
  int64_t weight_stride;
  const HeadEntries* entries;  // of this weight's rows
};

// Whether keeping logits is quicker here than making them once more: without
// AMX, where arithmetic is dear.
bool quicker_to_keep_logits();

// The logits of a shape as head_statistics() leaves them for head_gradients();
// KeptTile (cross_entropy_tile.h) says what is in it.
struct KeptLogits {
  uint16_t* exponentials;
  float* maximum;
};
// Lies in the calling thread's memory, valid until it asks again.
KeptLogits kept_logits(const HeadShape& shape);

// Per token over this weight's rows but those that stand out: the maximum logit
// (where no row is left something finite below kLeftOutLogit / 2, or -infinity
// without a row) and the sum of exp(logit - maximum).
struct HeadTokenStatistics {
  float* maximum;
  float* sum;
  float* entry_logits;  // at the entries' places; the rest stays as it is
};
inline constexpr float kLeftOutLogit = -1e30F;
// Fills `kept`, where there is one.
void head_statistics(
    const HeadShape& shape,
    const HeadTokenStatistics& result,
    const std::optional<KeptLogits>& kept = {});

// The gradient of a logit is factor * exp(logit - lse), but for an entry's,
// which is given:
struct HeadGradients {
  const float* lse;              // [N]
  const float* factor;           // [N]
  const float* entry_gradients;  // at the entries' places
  uint16_t* dhidden;             // [N, C] dense, overwritten; null: not wanted
  float* dweight;                // [V, C] dense, added to; null: not wanted
};
void head_gradients(
    const HeadShape& shape,
    const HeadGradients& result,
    const std::optional<KeptLogits>& kept = {});

}  // namespace brigade::ops
