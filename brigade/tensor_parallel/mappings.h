// The regions of tensor parallel as autograd functions: what a collective is in
// forward, its transpose is in backward.
//
//                      forward               backward
//   copy_region        -                     all-reduce
//   reduce_region_     all-reduce            -
//   sum_region         all-reduce            all-reduce
//   gather_region      all-gather (last dim) slice
//   gather_tokens      all-gather (dim 0)    reduce-scatter
//   reduce_tokens      reduce-scatter        all-gather
//
// copy_region, sum_region and gather_tokens assume that every rank computes a
// different part of the next operation (their gradients are parts of a sum);
// gather_region that every rank computes the same (their gradients are equal).
//
// Bytes sent a rank, n bytes in the whole tensor: all-reduce 2n(R-1)/R, the
// others n(R-1)/R. gather_region copies the tensor once more on top, to bring
// the ranks' columns next to each other.
//
// All ranks of the group call these in the same order, in backward too, and
// where a gradient is differentiated again (create_graph).
#pragma once

#include "brigade/tensor_parallel/tensor_parallel.h"

namespace brigade {

torch::Tensor copy_region(const torch::Tensor& x, const CommunicatorPtr& group);
torch::Tensor sum_region(const torch::Tensor& x, const CommunicatorPtr& group);
// On x's own memory: for a result that nothing else keeps. Autograd refuses it
// where another op saved x.
torch::Tensor reduce_region_(torch::Tensor x, const CommunicatorPtr& group);

// [.., n / R] -> [.., n].
torch::Tensor gather_region(
    const torch::Tensor& x,
    const CommunicatorPtr& group);

// [N, ..] <-> [N / R, ..]; R divides N, else Error.
torch::Tensor gather_tokens(
    const torch::Tensor& x,
    const CommunicatorPtr& group);
torch::Tensor reduce_tokens(
    const torch::Tensor& x,
    const CommunicatorPtr& group);

// Those tokens of [N, ..] of all that this rank computes itself: its own where
// tp divides tokens. An undefined tensor stays one.
torch::Tensor own_tokens(
    const TensorParallel& parallel,
    const torch::Tensor& of_all);

// The end of a row-parallel product: reduce_region_ or reduce_tokens; of one
// rank, x itself.
torch::Tensor leave_region(torch::Tensor x, const TensorParallel& parallel);

}  // namespace brigade
