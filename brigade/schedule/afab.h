// All forward, all backward (GPipe: Huang et al. 2018).
//
// Each rank runs the forward of all m micro-batches, then the backward of all
// of them, in the same order. Bubble (p-1)/(m+p-1); every rank keeps all m
// activations alive.
#pragma once

#include "brigade/schedule/schedule.h"

namespace brigade {

// Computation only, for any ranks and micro_batches from 1 on.
Schedule make_afab(int ranks, int micro_batches);

}  // namespace brigade
