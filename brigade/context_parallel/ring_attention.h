// Causal attention over a sequence that is spread over the ranks of the cp axis
// (Liu et al. 2023, "Ring Attention with Blockwise Transformers").
//
// Each rank keeps its queries and passes keys and values round the ring, before
// they are expanded to the query heads. In step s rank r attends to the block
// of rank r - s while the next one arrives; the results merge by their
// log-sum-exps. Backward passes keys and values round once more, and behind
// them the sums of their gradients, in float32, which end at their owner.
//
//   step 0   r0: q0 x kv0   r1: q1 x kv1   r2: q2 x kv2
//               kv0 ---> r1    kv1 ---> r2    kv2 ---> r0
//   step 1   r0: q0 x kv2   r1: q1 x kv0   r2: q2 x kv1   ...
//
// Tokens are spread by topology/sequence_partition.h (zigzag), so that under
// the causal mask every rank has the same work in every step: half a block.
//
// Costs a rank, R ranks, n = 2 B (T/R) Hkv D elements of keys and values:
//   forward   R-1 exchanges of n elements of k's dtype
//   backward  R-1 of n elements of k's dtype, R-1 of n float32
// of which all but the last of the gradients' run under the compute. Memory:
// two blocks of n, and in backward two more in float32; nothing grows with T
// but the rank's own T/R tokens.
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
  // For traces and tests: called after the compute of each step, forward and
  // backward, by the thread that computes.
  std::function<void(int step)> on_step_computed;
};

// q: [B, T/R, H, D]; k, v: [B, T/R, Hkv, D]: this rank's tokens in the order of
// token_positions(T, R, rank). Returns [B, T/R, H, D]. Differentiable in q, k
// and v. All ranks of the ring call it in the same order, in backward too.
// A ring of one is ops::attention(), bit for bit.
// Throws Error when T/R cannot be zigzag's two equal chunks, or shapes do not
// fit.
torch::Tensor ring_attention(
    const CommunicatorPtr& ring,
    const torch::Tensor& q,
    const torch::Tensor& k,
    const torch::Tensor& v,
    const RingAttentionOptions& options = {});

}  // namespace brigade
