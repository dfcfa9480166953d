// Which part of each parameter a tp rank holds, for initial weights, loading
// and saving. The parameter's row in the table says what is cut
// (parameter_table.h):
//
//   heads, features   equal parts
//   key/value heads   equal parts; where they are fewer than ranks, each head
//                     on tp / kv_heads ranks
//   vocabulary        equal parts of ceil(V / tp) entries, the last ones padded
//
// Core layer: no libtorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/model_spec/parameter_table.h"
#include "brigade/topology/parallel_dims.h"
#include "brigade/topology/token_layout.h"

namespace brigade {

// What decides whether a tp size fits a model.
struct TensorParallelSizes {
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;
  int64_t intermediate_size = 0;  // 0: no layer has an MLP of this size
  // The sizes of the model's experts; 0: it has none.
  int64_t moe_intermediate_size = 0;
  int64_t shared_expert_size = 0;
};
// Those of a config.
TensorParallelSizes tensor_parallel_sizes(const DecoderConfig& config);

// Adds one message for each size that tp does not fit, with the nearest tp
// sizes that fit all of them:
//   [tensor_parallel] num_attention_heads = 6 cannot be cut for tp 4; nearest
//   tp sizes that fit this model: 3, 6
// tp fits when it divides the heads and the widths of the MLPs, and divides or
// is a multiple of the kv heads. Any vocabulary fits.
void validate_tensor_parallel(
    const TensorParallelSizes& sizes,
    const ParallelDims& dims,
    std::vector<std::string>& problems);

// Rows of the embedding and of the head on every rank, padding included:
// ceil(V / tp).
int64_t vocab_rows_per_rank(int64_t vocab_size, int tp);

// Kv heads on every rank: kv_heads / tp, at least 1.
int64_t kv_heads_per_rank(int64_t num_key_value_heads, int tp);

// Ranks that hold the same kv heads: tp / kv_heads, at least 1.
int kv_replicas(int64_t num_key_value_heads, int tp);

// A part of a tensor: [begin, end) along `dim`; kNotCut: all of it.
struct Slice {
  int dim = kNotCut;
  int64_t begin = 0;
  int64_t end = 0;  // may equal begin
  int64_t length() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

// One parameter on one rank. The local tensor is `slice` of the full one,
// followed by rows of zeros up to shape[slice.dim] (padding, vocabulary alone).
struct ParamShard {
  std::vector<int64_t> shape;  // of the local tensor
  Slice slice;                 // empty: a shard that is all padding

  // Runs of this many consecutive tp ranks hold equal values; the first of a
  // run writes them to a checkpoint and counts them in the gradients' norm.
  int replicas = 1;
  bool is_first_replica = true;
  // Runs of this many consecutive tp ranks each have a part of the gradient,
  // which sum_over_replicas() adds up; 1: the gradient is whole. Never more
  // than `replicas`.
  int gradient_ranks = 1;

  bool operator==(const ParamShard&) const = default;
};

// The part of a row's parameter on the rank `at`, for sizes that
// validate_tensor_parallel() accepted.
ParamShard shard_parameter(
    const ParameterRow& row,
    const ParallelDims& dims,
    const Coordinate& at,
    TokenLayout tokens);

}  // namespace brigade
