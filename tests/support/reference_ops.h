// The ops as a few lines of torch operations, differentiated by torch, in any
// dtype (double included): the oracle of both kernel sets. It shares no code
// with them. Makes the whole T x T matrix and all logits.
#pragma once

#include <utility>

#include "brigade/ops/attention.h"

namespace brigade::testing::reference {

using ops::AttentionOptions;
using ops::AttentionResult;
using ops::RotaryTable;
using torch::Tensor;

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    double eps);
std::pair<Tensor, Tensor>
rotary(const Tensor& q, const Tensor& k, const RotaryTable& table);
Tensor swiglu(const Tensor& gate, const Tensor& up);
AttentionResult attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options);
// hidden: [N, C]; weight: [V, C]; targets: int64 [N].
Tensor linear_cross_entropy(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    int64_t ignore_index = -100);

// Which queries see which keys: bool [B or 1, Tq, Tk].
Tensor attention_mask(
    int64_t query_numel,
    int64_t key_numel,
    const AttentionOptions& options);

}  // namespace brigade::testing::reference
