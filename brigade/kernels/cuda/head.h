// The fused head and cross-entropy on a GPU: float32 logits of a chunk of
// tokens, which are read once for their softmax and once for their gradient.
#pragma once

#include <memory>

#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

// Without a soft cap or a teacher, of at least one valid row.
std::unique_ptr<HeadChunk> make_cuda_head_chunk(
    const HeadInputs& inputs,
    const HeadStatistics& statistics);

}  // namespace brigade::ops
