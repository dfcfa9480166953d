// Blockwise attention on the CPU. T: float or uint16_t (bf16), the type of q,
// k and v; outputs are T or float32.
#pragma once

#include <cstdint>

namespace brigade::ops {

// [B, tokens, heads, D] in memory; the last dim dense, strides in elements.
template <typename T>
struct Heads {
  T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  T* at(int64_t batch, int64_t token, int64_t head) const {
    return data + batch * batch_stride + token * token_stride +
           head * head_stride;
  }
};

// Rows of cos and sin, [tokens, D/2] dense; null: no rotation.
struct Rotation {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

struct AttentionShape {
  int64_t batch;
  int64_t query_tokens;
  int64_t key_tokens;
  int64_t heads;
  int64_t key_heads;
  int64_t head_dim;
  float scale;
  float soft_cap;  // scores become soft_cap * tanh(score / soft_cap); 0: none
  Rotation query_rotation;
  Rotation key_rotation;
  // Query i of batch b sees the keys [first_key[i], end_key[i]) (plus b *
  // seen_batch_stride).
  const int32_t* first_key;
  const int32_t* end_key;
  int64_t seen_batch_stride;
};

template <typename T>
struct AttentionForward {
  AttentionShape shape;
  Heads<const T> q, k, v;
  // One of the two is set.
  Heads<T> out;
  Heads<float> wide_out;
  float* lse;  // [B, H, Tq], the last dim dense
  int64_t lse_batch_stride;
  int64_t lse_head_stride;
  // Attention over keys of before, if set, with its log-sum-exps in lse: the
  // result is over those and these.
  Heads<const float> so_far = {};
};

template <typename T>
struct AttentionBackward {
  AttentionShape shape;
  // dout is T or, where that is null, float.
  Heads<const T> dout, q, k, v;
  Heads<const float> wide_dout;
  const float* lse;    // [B, H, Tq]
  const float* delta;  // [B, H, Tq]
  Heads<T> dq, dk, dv;
  Heads<float> wide_dq, wide_dk, wide_dv;
  // Added to dq of the queries [begin, end), if set.
  struct {
    Heads<const float> values;
    int64_t begin;
    int64_t end;
  } dq_so_far = {};
};

// sum += other, rotated back; both are of the same tokens.
template <typename T>
struct AddPartialGradient {
  Heads<T> sum;
  Heads<const T> other;
  Rotation rotation;
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
};

// The sum over D of dout * out.
template <typename T>
struct AttentionDelta {
  Heads<const T> dout, out;
  float* delta;  // [B, H, tokens]
  int64_t tokens;
  int64_t heads;
  int64_t head_dim;
};

// Tokens [begin, end) of all B * tokens, on the calling thread.
template <typename T>
void attention_delta(const AttentionDelta<T>& p, int64_t begin, int64_t end);

template <typename T>
void add_partial_gradient(
    const AddPartialGradient<T>& p,
    int64_t begin,
    int64_t end);

// The query heads that share key head `group % key_heads` of batch
// `group / key_heads`, on the calling thread.
void attention_forward(const AttentionForward<float>& p, int64_t group);
void attention_forward(const AttentionForward<uint16_t>& p, int64_t group);
void attention_backward(const AttentionBackward<float>& p, int64_t group);
void attention_backward(const AttentionBackward<uint16_t>& p, int64_t group);

}  // namespace brigade::ops
