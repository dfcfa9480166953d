// Weights that several tp ranks hold, each computing a part of the gradient:
//   * k and v projections when there are fewer kv heads than ranks: every
//     replica sees the query heads of its own rank;
//   * q_norm and k_norm, which each rank applies to its own heads;
//   * of an adapter the part that is not cut with its linear;
//   * with TokenLayout::kSharded, norms and biases of row-parallel linears,
//     which each rank applies to its own tokens.
// shard.h says which (ParamShard::gradient_ranks).
//
// The parts are added once per step, not per micro-batch: a sum over ranks
// commutes with the one over micro-batches and with the data parallel's. So it
// is called between the grad sync's finish() and the norm of the gradients, on
// main_grad: right with accumulation, with ops that add to main_grad inside
// their products, and with a grad sync that leaves each rank a shard (the same
// one on all ranks of a tp group, whose bucket plans are equal).
#pragma once

#include <torch/types.h>

#include <vector>

#include "brigade/comm/communicator.h"

namespace brigade {

// Adds up each of `gradients` in place over runs of `ranks` consecutive ranks
// of the group: [0, ranks), [ranks, 2 * ranks), ... Every member gets the same
// bits. Contiguous tensors of one dtype, of the same shapes on all ranks.
// `ranks` divides the group's size.
//
// Packs them into one message. Bytes sent per rank, n in total: a run that is
// the whole group all-reduces, 2n(R-1)/R; shorter ones exchange their parts
// directly, n * (ranks - 1) (runs are short: tp / kv heads).
void sum_over_replicas(
    Communicator& group,
    int ranks,
    const std::vector<torch::Tensor>& gradients);

}  // namespace brigade
