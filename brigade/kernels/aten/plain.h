// The plain twin of each op that torch has not: a few lines of torch
// operations, differentiated by torch, in any dtype (double included). The
// oracle of the tests, and what runs on devices and dtypes that have no kernel
// of their own. linear and embedding have none here: theirs are torch::linear
// and torch::embedding.
#pragma once

#include <utility>

#include "brigade/ops/adamw.h"
#include "brigade/ops/attention.h"

namespace brigade::ops::plain {

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps);
std::pair<Tensor, Tensor> add_rms_norm(
    const Tensor& x,
    const Tensor& residual,
    const Tensor& weight,
    double eps);
std::pair<Tensor, Tensor>
rotary(const Tensor& q, const Tensor& k, const RotaryTable& table);
Tensor swiglu(const Tensor& gate, const Tensor& up);
// Makes the T x T matrix.
AttentionResult attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options);
AttentionGradients attention_backward(
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& lse,
    const Tensor& delta,
    const AttentionOptions& options);
// Attention over some keys merged in place with attention over some others.
void merge_attention(AttentionResult whole, const AttentionResult& part);
// Makes all logits. hidden: [N, C]; weight: [V, C]; targets: int64 [N].
Tensor linear_cross_entropy(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    int64_t ignore_index = -100);
void adamw_step(
    const AdamWStep& step,
    Tensor main_grad,
    Tensor exp_avg,
    Tensor exp_avg_sq,
    Tensor weight,
    Tensor master_low,
    AfterRead after_read);
Tensor join_master(const Tensor& weight, const Tensor& low);
void split_master(const Tensor& master, Tensor weight, Tensor low);
double sum_of_squares(const Tensor& values);

// Which queries see which keys: bool [B or 1, Tq, Tk].
Tensor attention_mask(
    int64_t query_numel,
    int64_t key_numel,
    const AttentionOptions& options);

}  // namespace brigade::ops::plain
