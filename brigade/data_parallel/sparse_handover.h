// Gradients that autograd gives as sparse tensors (EmbeddingOptions::sparse):
// they stay sparse, outside of the flat memory.
//
// Ranks exchange the indices and values of their rows, and each adds them up in
// the order of ranks, so that all have the same bits. Micro-batches accumulate
// in .grad, as autograd does it, in the parameter's dtype.
//
// Costs at a step's end, after the buckets were launched: an all-gather of 8
// bytes per parameter, and two per parameter of n bytes, n the indices
// and values of the rank that has most rows.
#pragma once

#include <memory>
#include <vector>

#include "brigade/data_parallel/handover.h"

namespace brigade {

// `dense` for the others of `params`; itself where none has sparse gradients.
std::unique_ptr<Handover> with_sparse_handover(
    const std::vector<Param>& params,
    std::unique_ptr<Handover> dense);

}  // namespace brigade
