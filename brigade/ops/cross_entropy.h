// Cross-entropy fused with the head: loss = -sum log softmax(hidden weight^T)
// [target]. Logits exist for a chunk of rows at a time, and the gradient is
// computed in the same pass (as in Liger Kernel's fused linear cross-entropy),
// so the whole [N, V] matrix never does.
//
// Vocab-parallel: each rank holds rows [vocab_begin, vocab_begin + V) of the
// weight and the functions below reduce over the group; every rank gets the
// whole loss. The hidden's gradient is this rank's part: the copy region of
// tensor parallel, which put hidden on every rank, sums it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "brigade/ops/op_options.h"
#include "brigade/ops/soft_targets.h"

namespace brigade::ops {

// Whether the CPU's bf16 kernel keeps a chunk's logits for the gradient, in 16
// bits each, or computes them a second time. Other kernels always keep them.
enum class KeepLogits { kWhereQuicker, kAlways, kNever };

// A loss that is no plain sum, as a function of the losses of the tokens.
struct Objective {
  Tensor value;     // a scalar
  Tensor gradient;  // [N]: of the value, by each token's loss
};
// losses: float32 (of double operands double) [N], 0 where no target counts;
// the same on all ranks of a vocab-parallel group, on which it must return the
// same. Called without autograd, and for the gradient's sake: where one is
// wanted, the head is then computed a second time.
using ObjectiveFunction = std::function<Objective(const Tensor& losses)>;

struct CrossEntropyOptions {
  int64_t ignore_index = -100;  // a target that has no loss
  int64_t row_chunk = 0;        // tokens per chunk; 0: chosen by size
  KeepLogits keep_logits = KeepLogits::kWhereQuicker;
  WeightGrad weight_grad = WeightGrad::kReturn;
  Kernels kernels = Kernels::kAuto;
  // Logits become cap * tanh(logit / cap) (Gemma 2). Computed by ATen calls in
  // every kernel set.
  std::optional<double> logit_soft_cap;
  // What a teacher says, mixed with cross-entropy in its place. In float32
  // computed by ATen calls in every kernel set.
  std::optional<SoftTargets> teacher;
  // The gradient that backward will receive for the loss, where the caller
  // knows it (a trainer that folds 1 / tokens into the optimizer: 1.0). With
  // kAccumulate the weight's gradient is then added to weight.grad() during
  // forward, inside the products; without, a copy of [V, C] is kept until
  // backward. An incoming gradient that differs is an error, found where the
  // loss is on the CPU (reading it elsewhere would wait for the device).
  std::optional<double> known_gradient;

  // Takes the place of the sum of the losses; empty: the sum.
  ObjectiveFunction objective;

  int64_t vocab_begin = 0;  // first vocabulary entry of this weight
  // Rows of the weight that are vocabulary; those after it are padding and get
  // no probability. Default: all.
  std::optional<int64_t> valid_rows;
  // Entries of the whole vocabulary, for the check of targets. Default:
  // vocab_begin + valid_rows, right for a group of one.
  std::optional<int64_t> vocab_size;
  // Reduce in place over the vocab-parallel group; both empty: a group of one.
  // Called once per chunk with float32 (for double operands: double) tensors
  // [rows] and [2, rows], [4, rows] with a teacher. Ranks of a group, each with
  // a part of the vocabulary, make the same chunks on any machines.
  std::function<void(Tensor& maxima)> reduce_max;
  std::function<void(Tensor& sums)> reduce_sum;
};

// hidden: [N, C]; weight: [V, C]; targets: int64 [N]. Returns the sum of the
// tokens' losses, or what the objective makes of them: a float32 scalar (double
// for double operands), differentiable by hidden and weight. No gradient work
// under NoGradGuard. Throws DataError naming a target outside the vocabulary
// and its row, where the targets are on the CPU; so of a teacher's ids.
Tensor linear_cross_entropy(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    const CrossEntropyOptions& options = {});

}  // namespace brigade::ops
