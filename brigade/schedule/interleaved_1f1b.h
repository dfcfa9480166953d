// Interleaved 1F1B (Narayanan et al. 2021, Megatron-LM, section 2.2).
//
// Each rank holds v stages that are 1/v as deep, at a distance of p stages.
// Micro-batches go through in rounds of about p: a rank runs its first stage
// for the whole round, then its second, and so on; backward the other way
// round. Filling and draining takes 1/v of the time: bubble (p-1)/(v*m+p-1)
// when m is a multiple of p. The price: v times the transfers, and rank r keeps
// up to (v-1)*p + 2(p-1-r) + 1 activations (each of 1/v of the layers).
#pragma once

#include "brigade/schedule/schedule.h"

namespace brigade {

// Computation only. Requires micro_batches >= ranks: a round is at least p.
// Where m is not a multiple of p, m / p rounds share the micro-batches as
// evenly as they can.
Schedule
make_interleaved_1f1b(int ranks, int virtual_stages, int micro_batches);

// Forward passes alone, in the same order, for evaluation; for any
// micro_batches from 1 on.
Schedule make_forward_only(int ranks, int virtual_stages, int micro_batches);

}  // namespace brigade
