// Linears whose weight is cut over the tp group (Shoeybi et al. 2019,
// "Megatron-LM"), rank r holding the r-th of R equal parts:
//
//   column-parallel  weight [out/R, in]: each rank makes out/R columns
//   row-parallel     weight [out, in/R]: each rank makes a part of the sum
//
// A column-parallel group and the row-parallel linear after it make one
// collective in forward and one in backward, n = N * C elements each:
//
//               kReplicated               kSharded
//   forward     all-reduce (row)          all-gather (column), reduce-scatter
//                                         (row)
//   backward    all-reduce (column)       all-gather (row), reduce-scatter
//                                         (column)
//   bytes sent  2n(R-1)/R each            n(R-1)/R each of the two
//
// Backward starts the column's collective as soon as the input's gradient is
// there and computes the weight's gradient meanwhile.
//
// Shapes: N tokens. In kReplicated leading dims are free ([B, T, C] too), in
// kSharded the shared side is [N/R, C] and the cut side [N, ..].
//
// A LowRank's `a` is cut as the weight where its inputs are, `b` where its
// outputs are; the other is whole on every rank, and its gradient is this
// rank's part of a sum (replicated_gradients.h). Magnitudes are cut as outputs
// are; those of a row-parallel linear are whole on every rank and have the same
// kind of gradient as its bias. Dropout has one key for each of the N tokens;
// row_parallel_linear() sets the features that it is of.
#pragma once

#include <vector>

#include "brigade/ops/linear.h"
#include "brigade/tensor_parallel/tensor_parallel.h"

namespace brigade {

// Linears on one input that the model declares as one group (q, k and v; gate
// and up): one input region, so one collective for all of them, and with
// kOneMatrix one product where their weights are adjacent in memory.
// weights[i]: [out_i/R, in]; biases: empty, or one [out_i/R] or undefined each.
// Returns [N, out_i/R] each. Here and below options.on_input_grad is empty.
std::vector<torch::Tensor> column_parallel_linear(
    const TensorParallel& parallel,
    const torch::Tensor& x,
    const std::vector<torch::Tensor>& weights,
    const std::vector<torch::Tensor>& biases = {},
    const ops::LinearOptions& options = {
        .group = ops::WeightGroup::kOneMatrix});

// x: [N, in/R]; weight: [out, in/R]; bias: [out], whole on every rank and added
// once, after the reduction; or undefined. Returns [N, out] or, in kSharded,
// [N/R, out]; there the bias's gradient is this rank's tokens' part and is
// summed with the norms' (replicated_gradients.h).
torch::Tensor row_parallel_linear(
    const TensorParallel& parallel,
    const torch::Tensor& x,
    const torch::Tensor& weight,
    const torch::Tensor& bias = {},
    const ops::LinearOptions& options = {});

}  // namespace brigade
