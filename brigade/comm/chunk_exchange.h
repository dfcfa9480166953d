// A tensor as R chunks, the i-th of them rank i's: sent straight from where
// they lie and received where they belong, one message a peer. For the files of
// comm/ only.
//
//   scatter_chunks  every rank gets its chunk of each other rank
//   add_chunks      their sum: a reduce-scatter
//   gather_chunks   every rank gets all ranks' own chunks: an all-gather
//   sum_in_chunks   the three, one after the other: an all-reduce
//
// Costs a rank, n elements a chunk: n sent and as many received.
#pragma once

#include <torch/types.h>

#include <vector>

#include "brigade/comm/group_messages.h"

namespace brigade {

// chunks: [R, n]; into: [R - 1, n], this rank's chunks of the others, in rank
// order. Neither may change until the messages have ended.
PendingMessages scatter_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& chunks,
    const torch::Tensor& into);

// chunks: [R, n], of which this rank's is sent and the others' received; or R
// tensors whose sizes all ranks agree on.
PendingMessages gather_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& chunks);
PendingMessages gather_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const std::vector<torch::Tensor>& chunks);

// sum = own + others[0] + others[1] + ..., the same order for every element;
// 16-bit floats in float32, rounded once. sum, own: of one shape with n
// elements, the same memory or apart; others: [R - 1, n].
void add_chunks(
    const torch::Tensor& sum,
    const torch::Tensor& own,
    const torch::Tensor& others);

// The tensor becomes the sum over ranks, whatever its numel: scatter, add,
// gather. Blocks.
void sum_in_chunks(
    const GroupMessages& messages,
    MessageKind kind,
    const torch::Tensor& tensor);

}  // namespace brigade
