// What the layers of tensor parallel share: the group, and how the hidden
// states between its regions lie over the group's ranks.
//
// A layer's two pairs of products (q/k/v with o, gate/up with down) are each a
// column-parallel group followed by a row-parallel linear (Shoeybi et al. 2019,
// "Megatron-LM"). Between the pairs stand norms and residual adds, which work
// on one token at a time:
//
//   kReplicated  every rank has all N tokens: x [N, C]
//        copy region        forward nothing,        backward all-reduce
//        reduce region      forward all-reduce,     backward nothing
//   kSharded     rank r has the tokens [r N/tp, (r+1) N/tp): x [N/tp, C]
//        gather tokens      forward all-gather,     backward reduce-scatter
//        reduce-scatter     forward reduce-scatter, backward all-gather
//
// kSharded is sequence parallel (Korthikanti et al. 2022, "Reducing Activation
// Recomputation in Large Transformer Models"). It sends the same bytes and
// divides what norms and residuals keep for backward by tp.
//
// N = B * T flattened: the ops between the regions do not care which sequence
// a token belongs to, and cutting the flattened rows leaves every shard
// contiguous, so that no collective needs a copy around it. (Cutting dim T of
// [B, T, C] would cost two transposes a region.) It needs tp to divide B * T
// of a micro-batch, not T.
#pragma once

#include "brigade/comm/communicator.h"
#include "brigade/topology/token_layout.h"

namespace brigade {

// A value: cheap to copy, and a model may use another layout for a call (a
// single token, as `generate` has, cannot be sharded).
struct TensorParallel {
  CommunicatorPtr group;
  TokenLayout tokens = TokenLayout::kReplicated;

  int rank() const { return group->rank(); }
  int size() const { return group->size(); }
};

}  // namespace brigade
