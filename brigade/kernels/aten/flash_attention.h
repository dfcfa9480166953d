// Attention by libtorch's flash kernels, where it has them for the operands: on
// the CPU and on CUDA, without a window, documents or a cap of the scores. One
// call of a kernel per piece of flash_plan.h, merged by their log-sum-exps.
//
// On the CPU operands are widened first. On CUDA they are bf16 or half, rotated
// q and k are rounded to that, and so is each piece's result.
#pragma once

#include <optional>

#include "brigade/ops/attention.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {

// As KernelSet::attention(); false, with nothing written: not by these kernels.
// `kernels` rotate what a GPU's flash kernel takes.
bool flash_forward(
    const KernelSet& kernels,
    const AttentionResult& into,
    const AttentionResult& so_far,
    const AttentionOperands& operands,
    const AttentionOptions& options);

// As KernelSet::attention_backward(), on a GPU, of a call that is one piece of
// flash_plan.h and has `out`: the kernel's gradients are taken as they are.
// False, with nothing written: not by this.
bool flash_backward_whole(
    const KernelSet& kernels,
    const AttentionGradients& into,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options);

// x [B, T, heads, D], rotated where there is a table, with a dense last dim; on
// the CPU wide.
Tensor flash_operand(
    const KernelSet& kernels,
    const Tensor& x,
    const std::optional<RotaryTable>& table);

// Whether out, dout and all gradients are there in the operands' own dtype, as
// a GPU's flash kernels take and give them.
bool is_narrow_backward(
    const AttentionGradients& into,
    const AttentionBackwardInputs& inputs);

// Gradients of the rotated q and k, and of v, [B, T, heads, D] with a dense
// last dim, rotated back into those of the operands.
void write_flash_gradients(
    const KernelSet& kernels,
    const AttentionGradients& into,
    const AttentionGradients& of_rotated,
    const AttentionOptions& options);

// Wide gradients of the rotated q and k, and of v: [B, T, heads, D]. None: not
// by these kernels.
std::optional<AttentionGradients> flash_backward(
    const KernelSet& kernels,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options);

}  // namespace brigade::ops
