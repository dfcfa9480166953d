// ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 3.1).
//
// 1F1B with backward in two halves: the input gradient at once, because the
// stage before waits for it; the weight gradient later, where the rank would
// otherwise wait. Rank r runs weight halves r micro-batches late, which keeps
// as many activations alive on each rank as 1F1B does on its first: min(m, p).
// With times f, b, w of forward and the two halves the idle time of a rank
// falls from (p-1)(f+b+w) to (p-1)(f+b-w): a third when the three are equal.
#pragma once

#include "brigade/schedule/schedule.h"

namespace brigade {

// Computation only, for any ranks and micro_batches from 1 on.
Schedule make_zero_bubble(int ranks, int micro_batches);

}  // namespace brigade
