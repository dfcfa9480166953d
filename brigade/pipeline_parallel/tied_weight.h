// A model with tied embeddings has one matrix twice when it is cut into stages:
// as embedding on the first rank of the pipeline and as head on the last. Both
// start equal (initial weights depend on seed and name alone) and stay equal
// because both step with the sum of the two gradients.
#pragma once

#include <torch/types.h>

#include "brigade/comm/communicator.h"

namespace brigade {

// Replaces `gradient` by the sum of the first and the last rank's, added in
// that order on both, so that the results are equal to the last bit. Called by
// these two ranks of `pp` once a step, when the gradients are complete and
// reduced over dp x cp. The other ranks, and a pipeline of one rank, where
// embedding and head are one tensor, have nothing to do; they may call it.
//
// gradient: contiguous, the same shape and dtype on both ends, [V / tp, C].
// Cost: V / tp * C elements sent and received by each end, in pieces of 8 MiB,
// one of which is the extra memory. Throws CommError.
void sum_tied_gradient(Communicator& pp, torch::Tensor gradient);

}  // namespace brigade
