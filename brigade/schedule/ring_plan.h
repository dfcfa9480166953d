// Which queries attend to which keys in each step of ring attention, as a
// table.
//
// Each rank has two chunks of tokens (zigzag). With a causal mask a pair of
// chunks is visible, diagonal or hidden. Hidden pairs are left out; the rest of
// a step is one rectangle of queries and keys:
//
//   4 ranks, rank 1 holds the chunks 1 and 6:
//   step 0, block of rank 1 (1, 6)   both chunks x both chunks, diagonal
//   step 1, block of rank 0 (0, 7)   both chunks x chunk 0
//   step 2, block of rank 3 (3, 4)   chunk 6     x both chunks
//   step 3, block of rank 2 (2, 5)   chunk 6     x both chunks
// so every rank computes half a block in every step after the first.
//
// PURE.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "brigade/topology/sequence_partition.h"

namespace brigade {

struct RingPlanOptions {
  int64_t sequence_tokens = 0;  // T, of the whole ring
  int ring_size = 1;
  int ring_rank = 0;
  bool causal = true;
  std::optional<int64_t> sliding_window;  // tokens seen, the query's included
};

// Ranges are of local tokens: of this rank's queries and of the block's keys.
// Every pair that sees each other lies inside; both are empty when none does.
struct RingStep {
  int source = 0;  // the rank whose keys and values these are
  TokenRange queries;
  TokenRange keys;
  bool is_hidden() const { return queries.size() == 0; }
  bool operator==(const RingStep&) const = default;
};

// One step per rank, this rank's own block first, then rank - 1, rank - 2, ...
// Expects a length that validate_sequence_partition() accepted.
std::vector<RingStep> plan_ring(const RingPlanOptions& options);

// The tokens of `owner`'s block that some other rank attends to and that must
// therefore be sent. Rank 0's second chunk, for example, is the last of a
// causal sequence and is not sent. The options' ring_rank is ignored.
TokenRange travelling_tokens(const RingPlanOptions& options, int owner);

}  // namespace brigade
