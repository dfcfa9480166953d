// The schedules of one stage per rank. With p ranks and m micro-batches:
//
// All forward, all backward (GPipe: Huang et al. 2018). Each rank runs the
// forward of all m micro-batches, then the backward of all of them, in the same
// order. Bubble (p-1)/(m+p-1); every rank keeps all m activations alive.
//
// One forward, one backward (PipeDream-flush: Narayanan et al. 2020). Rank r
// fills the pipeline with p-1-r forwards, then alternates one forward and one
// backward, then drains. The same bubble, but only min(m, p-r) activations are
// alive at once, however many micro-batches there are.
//
// ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 3.1). 1F1B
// with backward in two halves: the input gradient at once, because the stage
// before waits for it; the weight gradient later, where the rank would
// otherwise wait. Rank r runs weight halves r micro-batches late, which keeps
// as many activations alive on each rank as 1F1B does on its first: min(m, p).
// With times f, b, w of forward and the two halves the idle time of a rank
// falls from (p-1)(f+b+w) to (p-1)(f+b-w): to a third when the three are equal.
#pragma once

#include "brigade/schedule/schedule.h"

namespace brigade {

// Computation only, for any ranks and micro_batches from 1 on.
Schedule make_afab(int ranks, int micro_batches);
Schedule make_one_f_one_b(int ranks, int micro_batches);
Schedule make_zero_bubble(int ranks, int micro_batches);

}  // namespace brigade
