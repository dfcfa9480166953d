// Scaled dot-product attention with grouped queries, blockwise (Dao et al.
// 2022, "FlashAttention"): never a whole T x T matrix, and keys and values are
// never expanded to the query heads. The CPU kernels skip blocks that the mask
// hides.
//
// The mask is a rule on positions, so that one function serves training, a KV
// cache and ring attention: query at position p sees key at position s when
//   s <= p                (causal)
//   s >  p - window       (sliding window)
//   s >= document_start   (attention reset)
// A query that sees no key yields out = 0 and lse = -infinity.
#pragma once

#include <torch/types.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "brigade/ops/op_options.h"
#include "brigade/ops/rotary.h"

namespace brigade::ops {

// numel tokens at positions begin, begin + 1, ...
struct PositionRange {
  int64_t begin = 0;
  int64_t numel = 0;
  bool operator==(const PositionRange&) const = default;
};

struct AttentionOptions {
  std::optional<double> scale;  // default: 1 / sqrt(D)
  // Bounds the scores, after the scale and before the mask (Gemma 2):
  // score = cap * tanh(score / cap). Positive; none: no bound.
  std::optional<double> logit_soft_cap;
  bool causal = true;
  // Tokens that a query sees, itself included (Mistral); needs causal.
  std::optional<int64_t> sliding_window;
  // Positions of the queries and of the keys, in order, ascending, without
  // overlap. Empty: 0, 1, ... A KV cache holding n tokens: queries {{n, T}}.
  // Ring attention's zigzag: {{r * c, c}, {(2 * cp - 1 - r) * c, c}}.
  std::vector<PositionRange> query_positions;
  std::vector<PositionRange> key_positions;
  // int64 [B, Tq], the position at which each query's document begins; needs
  // causal. Undefined: one document.
  Tensor document_starts;
  // Rotates q and k while they are loaded (and their gradients while they are
  // stored), instead of a pass of rotary() over memory. The tables hold a row
  // for each query and for each key; without key_rotary, query_rotary serves
  // both (Tq == Tk), or the queries alone where the keys come rotated.
  std::optional<RotaryTable> query_rotary;
  std::optional<RotaryTable> key_rotary;
  bool keys_are_rotated = false;
  // dtype of out, and of dq, dk and dv in backward; default: q's. Ring
  // attention takes partial results in float32 and rounds once.
  std::optional<torch::ScalarType> out_dtype;
  Kernels kernels = Kernels::kAuto;

  // What the products of q [B, Tq, H, D] and k are multiplied by.
  double scale_of(const Tensor& q) const {
    return scale.value_or(1.0 / std::sqrt(static_cast<double>(q.size(3))));
  }
  // What the keys are rotated by while they are loaded, if at all.
  const std::optional<RotaryTable>& rotary_of_keys() const {
    return key_rotary || keys_are_rotated ? key_rotary : query_rotary;
  }
};

// D is at most 256, Hkv divides H, all three are of one dtype.
struct AttentionOperands {
  Tensor q;  // [B, Tq, H, D]
  Tensor k;  // [B, Tk, Hkv, D]
  Tensor v;  // [B, Tk, Hkv, D]
};

struct AttentionResult {
  Tensor out;  // [B, Tq, H, D]
  // [B, H, Tq], float32, or double for double operands: log of the sum of exp
  // of the scores.
  Tensor lse;
};

// What backward needs, for gradients of the keys at hand: out, lse and delta
// are those of attention over all keys. One of out and delta may be undefined:
// delta is all that most kernels want of out.
struct AttentionBackwardInputs {
  AttentionOperands operands;
  Tensor dout;   // [B, Tq, H, D]
  Tensor lse;    // [B, H, Tq], as in AttentionResult
  Tensor delta;  // [B, H, Tq], by attention_delta()
  Tensor out;    // [B, Tq, H, D]
};

struct AttentionGradients {
  Tensor dq;  // [B, Tq, H, D]
  Tensor dk;  // [B, Tk, Hkv, D]
  Tensor dv;  // [B, Tk, Hkv, D]
};

// A gradient over some of the queries, float32 (or double).
struct QueryGradientPart {
  Tensor values;  // [B, tokens, H, D]; undefined: there is none
  int64_t first_token = 0;
};

// q: [B, Tq, H, D]; k, v: [B, Tk, Hkv, D]. Differentiable through out. Where q,
// k and v are column ranges of one fused buffer, their gradients are too, in
// the same order. Throws UsageError where operands and options do not fit.
AttentionResult attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options = {});

// The two halves, outside autograd, for ring attention: partial results over
// some keys merge by lse; the backward of each part takes the lse and the delta
// of the whole.
AttentionResult attention_forward(
    const AttentionOperands& operands,
    const AttentionOptions& options);

// The same, continuing attention over other keys: `so_far` (out in float32, or
// double; undefined: nothing yet) and these give attention over both. Results
// are written to the caller's memory: out in q's dtype or float32, with a dense
// last dim, which may be so_far's, and lse, which must be so_far's.
// options.out_dtype is ignored.
void attention_forward_onto(
    const AttentionResult& into,
    const AttentionResult& so_far,
    const AttentionOperands& operands,
    const AttentionOptions& options);

// sum over D of dout * out, [B, T, H, D] each: [B, H, T], float32, or double
// for double operands.
Tensor attention_delta(
    const Tensor& dout,
    const Tensor& out,
    Kernels kernels = Kernels::kAuto);

// inputs.delta, or what attention_delta() makes of inputs.out.
Tensor delta_of(const AttentionBackwardInputs& inputs, Kernels kernels);

AttentionGradients attention_backward(
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options);

// The same into memory of the caller, which is overwritten: of those shapes,
// each in q's dtype or float32, with any strides. options.out_dtype is ignored.
// `dq_so_far`, by other keys, is added to dq.
void attention_backward_into(
    const AttentionGradients& into,
    const QueryGradientPart& dq_so_far,
    const AttentionBackwardInputs& inputs,
    const AttentionOptions& options);

// Uninitialised gradients of that dtype, column ranges of one buffer where the
// operands are.
AttentionGradients empty_attention_gradients(
    const AttentionOperands& operands,
    torch::ScalarType dtype);

// sum += other (rotated back where `rotary`, with a row for each token, is
// given), rounded once: gradients of keys by the queries of several ranks. sum
// and other: [B, T, H, D] of one dtype, sum with a dense last dim.
void add_partial_gradient(
    Tensor sum,
    const Tensor& other,
    const std::optional<RotaryTable>& rotary,
    Kernels kernels = Kernels::kAuto);

}  // namespace brigade::ops
