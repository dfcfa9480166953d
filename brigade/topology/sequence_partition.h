// Which tokens of a sequence each rank of the cp axis holds.
//
// Under a causal mask late tokens attend to more keys than early ones, so a
// contiguous parts give the last rank twice the mean work. The zigzag cut makes
// 2 * cp equal chunks and gives rank r the chunks r and 2cp-1-r: an early one
// and its mirror image, the same work for every rank.
//   cp = 2, chunks 0 1 2 3:  rank 0 holds 0 and 3, rank 1 holds 1 and 2.
// With cp = 1 the one rank holds the sequence as it is.
//
// Source: the load-balanced ring attention of Megatron-Core and zhuzilin's
// ring-flash-attention ("zigzag").
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/topology/parallel_dims.h"

namespace brigade {

// Tokens begin .. end - 1.
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const TokenRange&) const = default;
};

// Adds a message when `sequence_tokens` cannot be cut for `cp` ranks (cp > 1
// needs a multiple of 2 * cp), naming the nearest lengths that can.
void validate_sequence_partition(
    int64_t sequence_tokens,
    int cp,
    std::vector<std::string>& problems);

// The ranges of `cp_rank` in ascending order, which is the order of its local
// tokens: two for cp > 1, one for cp = 1. Expects a validated length.
std::vector<TokenRange>
sequence_chunks(int64_t sequence_tokens, int cp, int cp_rank);

// The place in the whole sequence of each local token of `cp_rank`, for rotary
// positions and for cutting tokens and targets: T / cp of them.
std::vector<int64_t>
token_positions(int64_t sequence_tokens, int cp, int cp_rank);

// ---- the same of a layout, whatever axes divide its sequences (kSequenceAxes)

// See above.
void validate_sequence_partition(
    int64_t sequence_tokens,
    const ParallelDims& dims,
    std::vector<std::string>& problems);

// The tokens of a sequence that each rank holds.
int64_t tokens_per_rank(int64_t sequence_tokens, const ParallelDims& dims);

// See above.
std::vector<int64_t> token_positions(
    int64_t sequence_tokens,
    const ParallelDims& dims,
    const Coordinate& at);

}  // namespace brigade
