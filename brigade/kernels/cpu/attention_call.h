// A call of attention as the kernels take it: checked, the mask as runs of
// keys, tensors as heads.
#pragma once

#include <torch/types.h>

#include <type_traits>

#include "brigade/kernels/cpu/attention_kernel.h"
#include "brigade/ops/attention.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {

// Throws Error unless q, k, v and the options fit one another.
void check_attention(
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options);

// Whether the kernels take such operands; the plain twin serves the rest.
bool attention_kernel_fits(
    const Tensor& q,
    const Tensor& k,
    const AttentionOptions& options);

// Both of operands that fit. so_far.out may be undefined; gradients have q's
// dtype or float32 and a dense last dim.
void run_attention_forward(
    const AttentionResult& result,
    const AttentionResult& so_far,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const AttentionOptions& options);
void run_attention_backward(
    const AttentionGradients& result,
    const QueryGradientPart& dq_so_far,
    const Tensor& dout,
    const Tensor& q,
    const Tensor& k,
    const Tensor& v,
    const Tensor& lse,
    const Tensor& delta,
    const AttentionOptions& options);

// With a dense last dim.
inline Tensor dense(const Tensor& x) {
  return x.size(3) == 1 || x.stride(3) == 1 ? x : x.contiguous();
}

template <typename T>
Heads<T> heads_of(const Tensor& x) {
  using Element = std::remove_const_t<T>;
  return {data<Element>(x), x.stride(0), x.stride(1), x.stride(2)};
}

inline bool is_wide(const Tensor& x) {
  return x.scalar_type() == torch::kFloat;
}

}  // namespace brigade::ops
