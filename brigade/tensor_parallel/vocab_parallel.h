// The embedding and the head with their vocabulary cut over the tp group: rank
// r holds the rows [r * n, (r + 1) * n), n = ceil(V / R). Rows from V on are
// padding: no token selects them, they get no probability and no gradient.
// n is vocab_rows_per_rank() of shard.h.
#pragma once

#include <cstdint>

#include "brigade/ops/cross_entropy.h"
#include "brigade/ops/op_options.h"
#include "brigade/tensor_parallel/tensor_parallel.h"

namespace brigade {

// ids: int64, N of any shape, equal on all ranks; weight: [n, C].
// Each rank looks up the tokens that it holds and zeros for the others, and one
// all-reduce (reduce-scatter) of N * C elements adds them: exactly, since one
// rank alone has something.
// Returns [.., C] or, in kSharded, [N/R, C].
// Throws DataError naming an id outside [0, vocab_size) and its place.
torch::Tensor vocab_parallel_embedding(
    const TensorParallel& parallel,
    const torch::Tensor& ids,
    const torch::Tensor& weight,
    int64_t vocab_size,
    const ops::OpOptions& options = {});

// hidden: [N, C] or, in kSharded, [N/R, C]; weight: [n, C]; targets: int64 [N],
// equal on all ranks. Returns the sum of the N tokens' losses, or what the
// objective makes of them: a float32 scalar, the same on every rank. Of the
// options vocab_size must be given; vocab_begin, valid_rows, reduce_max and
// reduce_sum are set here.
//
// No rank has all logits: each computes its [chunk, n], and the group exchanges
// one maximum and two sums per token (12 bytes per token in two all-reduces per
// chunk; 20 with a teacher, which has four sums). Backward reduces the hidden's
// gradient, one all-reduce (reduce-scatter) of N * C elements; in kSharded
// forward gathers the hidden.
torch::Tensor vocab_parallel_cross_entropy(
    const TensorParallel& parallel,
    const torch::Tensor& hidden,
    const torch::Tensor& weight,
    const torch::Tensor& targets,
    ops::CrossEntropyOptions options);

// All logits of few tokens, for generating text: hidden [N, C] (kReplicated
// whatever `parallel` says) to [N, vocab_size] on every rank. One all-gather of
// N * n * R elements.
torch::Tensor vocab_parallel_logits(
    const TensorParallel& parallel,
    const torch::Tensor& hidden,
    const torch::Tensor& weight,
    int64_t vocab_size,
    ops::Kernels kernels = ops::Kernels::kAuto);

}  // namespace brigade
