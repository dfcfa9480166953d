// One forward, one backward (PipeDream-flush: Narayanan et al. 2020).
//
// Rank r fills the pipeline with p-1-r forwards, then alternates one forward
// and one backward, then drains. The same bubble as afab, (p-1)/(m+p-1), but
// only min(m, p-r) activations are alive at once, however many micro-batches
// there are.
#pragma once

#include "brigade/schedule/schedule.h"

namespace brigade {

// Computation only, for any ranks and micro_batches from 1 on.
Schedule make_one_f_one_b(int ranks, int micro_batches);

}  // namespace brigade
