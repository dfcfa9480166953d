// Causal attention over a sequence that is spread over the ranks of the cp axis
// (Liu et al. 2023, "Ring Attention with Blockwise Transformers").
//
// Each rank keeps its queries, rotates its keys once, and passes keys and
// values around the ring before they are expanded to the query heads. In step
// s rank r attends to the block of rank r - s while the next one arrives; the
// results merge by their log-sum-exps. Only tokens that some other rank attends
// to are sent (travelling_tokens()).
//
//   step 0   r0: q0 x kv0   r1: q1 x kv1   r2: q2 x kv2
//               kv0 ---> r1    kv1 ---> r2    kv2 ---> r0
//   step 1   r0: q0 x kv2   r1: q1 x kv0   r2: q2 x kv1
//               kv2 ---> r1    kv0 ---> r2    kv1 ---> r0
//   step 2   r0: q0 x kv1   r1: q1 x kv2   r2: q2 x kv0
//
// Backward goes through the steps from the last to the first. It begins with
// the block that forward ended with, which is kept, and passes blocks down the
// ring; behind them go the sums of their gradients, in k's dtype, rounded once
// per hop. The last hop of a gradient, to its owner, overlaps with the backward
// of the owner's own block.
//
// Tokens are spread by topology/sequence_partition.h (zigzag), so that under
// the causal mask every rank has the same work in every step: half a block.
//
// Costs per rank, R ranks, n = 2 B (T/R) Hkv D elements of keys and values
// (half of that for rank 0's block under a causal mask):
//   forward   R-1 exchanges of n elements of k's dtype
//   backward  R-2 of n elements of k's dtype, R-1 of as many gradients
// each of them during the compute of a step. Memory: from forward to backward
// one block of n besides the rank's own; within forward one more block, within
// backward one more, two of gradients and a float32 part. Only the rank's own
// T/R tokens grow with T.
#pragma once

#include <functional>

#include "brigade/comm/communicator.h"
#include "brigade/ops/attention.h"

namespace brigade {

struct RingAttentionOptions {
  // Positions must be empty: the ring knows them. Document starts and rotary
  // tables are of this rank's T/R tokens, document starts in positions of the
  // whole sequence.
  ops::AttentionOptions attention;
  // Called, for traces and tests, after the compute of each step, forward (0 to
  // R-1) and backward (R-1 to 0), by the thread that computes.
  std::function<void(int step)> on_step_computed;
};

// q: [B, T/R, H, D]; k, v: [B, T/R, Hkv, D]: this rank's tokens in the order of
// token_positions(T, R, rank). Returns [B, T/R, H, D]. Differentiable in q, k
// and v, once: backward receives into the block that forward kept, so a second
// one of the same graph throws UsageError (a ring of one allows it). All ranks
// of the ring call it in the same order, in backward too.
// A ring of one is ops::attention(), bit for bit.
// Throws UsageError when T/R cannot be zigzag's two equal chunks, or shapes do
// not fit.
torch::Tensor ring_attention(
    const CommunicatorPtr& ring,
    const torch::Tensor& q,
    const torch::Tensor& k,
    const torch::Tensor& v,
    const RingAttentionOptions& options = {});

}  // namespace brigade
