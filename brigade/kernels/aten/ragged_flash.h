// Attention with a sliding window or documents by libtorch's flash kernel for
// sequences of different lengths, on CUDA: a document is a sequence, so that
// no time goes to keys that the mask hides.
//
// Operands are bf16 or half, and rotated q and k are rounded to that. Where
// documents begin is read on the host at each call.
#pragma once

#include "brigade/ops/attention.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

// As KernelSet::attention() with nothing so far; false, with nothing written:
// not by this kernel. `kernels` rotate.
bool ragged_flash_forward(
    const KernelSet& kernels,
    const AttentionResult& into,
    const AttentionOperands& operands,
    const AttentionOptions& options);

// As KernelSet::attention_backward() without gradients so far; inputs.out is
// wanted. False, with nothing written: not by this kernel.
bool ragged_flash_backward(
    const KernelSet& kernels,
    const AttentionGradients& into,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options);

}  // namespace brigade::ops
