// Where the interfaces of libtorch 1.13 to 2.15 differ. What depends on the
// version is found out from libtorch's own declarations, not from its number.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <cmath>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "brigade/ops/adamw.h"

namespace brigade::ops {

// ---- the graph

// What holds a node of autograd's graph: std::shared_ptr, and in 2.14
// c10::intrusive_ptr.
using NodePtr = std::remove_cvref_t<
    decltype(std::declval<const torch::Tensor&>().grad_fn())>;

// A node that is destroyed as libtorch does it: without recursion.
template <typename NodeType, typename... Arguments>
NodePtr make_node(Arguments&&... arguments) {
  using torch::autograd::Node;
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<Node>>) {
    // Found by its argument, only where it is needed.
    const auto destroy = [](auto* node) { deleteNode(node); };
    return NodePtr(
        new NodeType(std::forward<Arguments>(arguments)...),
        [destroy](Node* node) { destroy(node); });
  } else {
    return c10::make_intrusive<NodeType>(std::forward<Arguments>(arguments)...);
  }
}

// ---- fused operations of newer libtorch
//
// A function returns nothing (or false), and has done nothing, where this
// libtorch has no such operation for the operands' device. libtorch's are found
// by their arguments, which is why all of these are templates.

// Used in such a template: if this libtorch has the function, calls it and
// executes the block that follows with its result. A macro, so that the call is
// written once.
#define BRIGADE_IF_DECLARED(result, ...)   \
  if constexpr (requires { __VA_ARGS__; }) \
    if (auto result = __VA_ARGS__; true)

// libtorch's sdp::SDPBackend, of those that are used here.
constexpr int64_t kFlashBackend = 1;
constexpr int64_t kCudnnBackend = 3;

// Which backend libtorch would take for these on CUDA; -1: it does not say.
template <typename T>
int64_t attention_backend(const T& q, const T& k, const T& v) {
  if (!q.is_cuda())
    return -1;
  BRIGADE_IF_DECLARED(
      backend, _fused_sdp_choice(q, k, v, {}, 0.0, false, 1.0, true)) {
    return backend;
  }
  return -1;
}

// Flash attention (Dao et al. 2022). q: [B, H, T, D]; k, v: [B, Hkv, Tk, D], on
// the CPU of as many heads as q; of one dtype, with a dense last dim. On the
// CPU it computes in that dtype, on CUDA it takes bf16 and half. is_causal
// needs T == Tk.
template <typename T>
bool has_flash_attention(const T& q, const T& k, const T& v) {
  if (q.is_cpu()) {
    // NOLINTNEXTLINE(readability-simplify-boolean-expr)
    return requires {
      _scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true, {}, 1.0);
    };
  }
  // cuDNN's asks for more than flash does.
  const int64_t backend = attention_backend(q, k, v);
  return q.size(-1) % 8 == 0 &&
         (backend == kFlashBackend || backend == kCudnnBackend);
}

/// What attention computed without ever holding its scores.
template <typename T>
struct FlashResult {
  T out;  // [B, H, T, D]
  T lse;  // [B, H, T], wide
};
// Precondition: has_flash_attention().
template <typename T>
std::optional<FlashResult<T>> flash_attention(
    const T& q,
    const T& k,
    const T& v,
    bool is_causal,
    double scale) {
  if (q.is_cpu()) {
    BRIGADE_IF_DECLARED(
        all,
        _scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, is_causal, {}, scale)) {
      return FlashResult<T>{std::get<0>(all), std::get<1>(all)};
    }
    return std::nullopt;
  }
  // On Hopper cuDNN's takes two thirds of flash's time.
  if (attention_backend(q, k, v) == kCudnnBackend) {
    BRIGADE_IF_DECLARED(
        all,
        _scaled_dot_product_cudnn_attention(
            q, k, v, {}, true, 0.0, is_causal, false, scale)) {
      return FlashResult<T>{std::get<0>(all), std::get<1>(all).squeeze(-1)};
    }
  }
  BRIGADE_IF_DECLARED(
      all,
      _scaled_dot_product_flash_attention(
          q, k, v, 0.0, is_causal, false, scale)) {
    return FlashResult<T>{std::get<0>(all), std::get<1>(all)};
  }
  return std::nullopt;
}

/// Attention's gradients.
template <typename T>
struct FlashGradients {
  T dq, dk, dv;  // as q, k and v
};
// The state of a dropout that is none, on the device of `like`.
template <typename T>
T no_dropout(const T& like) {
  return at::empty({}, like.options().dtype(torch::kLong));
}

// flash_attention_backward() by cuDNN.
template <typename T>
std::optional<FlashGradients<T>> cudnn_attention_backward(
    const T& dout,
    const T& q,
    const T& k,
    const T& v,
    const FlashResult<T>& whole,
    bool is_causal,
    double scale) {
  const T& out = whole.out;
  const T lse = whole.lse.unsqueeze(-1);
  const T none;
  const T state = no_dropout(lse);
  BRIGADE_IF_DECLARED(
      all,
      _scaled_dot_product_cudnn_attention_backward(
          dout,
          q,
          k,
          v,
          out,
          lse,
          state,
          state,
          none,
          none,
          none,
          q.size(2),
          k.size(2),
          0.0,
          is_causal,
          scale)) {
    const auto [dq, dk, dv] = all;
    return FlashGradients<T>{dq, dk, dv};
  }
  return std::nullopt;
}

// Precondition: has_flash_attention(). out and lse are those of attention over
// all keys; of out only the dot product of each row with dout's is used.
template <typename T>
std::optional<FlashGradients<T>> flash_attention_backward(
    const T& dout,
    const T& q,
    const T& k,
    const T& v,
    const FlashResult<T>& whole,
    bool is_causal,
    double scale) {
  // No structured binding: Clang 14 knows none inside a requires-expression.
  const T& out = whole.out;
  const T& lse = whole.lse;
  if (q.is_cpu()) {
    BRIGADE_IF_DECLARED(
        all,
        _scaled_dot_product_flash_attention_for_cpu_backward(
            dout, q, k, v, out, lse, 0.0, is_causal, {}, scale)) {
      const auto [dq, dk, dv] = all;
      return FlashGradients<T>{dq, dk, dv};
    }
    return std::nullopt;
  }
  if (attention_backend(q, k, v) == kCudnnBackend) {
    if (auto gradients =
            cudnn_attention_backward(dout, q, k, v, whole, is_causal, scale))
      return gradients;
  }
  const T none;
  const T state = no_dropout(lse);
  BRIGADE_IF_DECLARED(
      all,
      _scaled_dot_product_flash_attention_backward(
          dout,
          q,
          k,
          v,
          out,
          lse,
          none,
          none,
          q.size(2),
          k.size(2),
          0.0,
          is_causal,
          state,
          state,
          scale)) {
    const auto [dq, dk, dv] = all;
    return FlashGradients<T>{dq, dk, dv};
  }
  return std::nullopt;
}

/// Sequences of different lengths, one after another, for CUDA's kernels.
template <typename T>
struct RaggedSequences {
  T bounds;         // int32 [sequences + 1]: 0, the end of each
  int64_t longest;  // tokens
  double scale;
  std::optional<int64_t> window_left;  // keys before its own that a query sees
};

// Causal flash attention of each sequence. q: [N, H, D]; k, v: [N, Hkv, D], on
// CUDA, what has_flash_attention() takes, with a dense last dim. Returns out
// [N, H, D] and lse [H, N].
template <typename T>
std::optional<FlashResult<T>> ragged_flash_attention(
    const T& q,
    const T& k,
    const T& v,
    const RaggedSequences<T>& of) {
  const T& bounds = of.bounds;
  BRIGADE_IF_DECLARED(
      all,
      _flash_attention_forward(
          q,
          k,
          v,
          bounds,
          bounds,
          of.longest,
          of.longest,
          0.0,
          /*is_causal=*/true,
          /*return_debug_mask=*/false,
          of.scale,
          of.window_left,
          of.window_left ? std::optional<int64_t>(0) : std::nullopt)) {
    // Versions before 2.5 pad it to the longest sequence.
    if (std::get<1>(all).dim() == 2)
      return FlashResult<T>{std::get<0>(all), std::get<1>(all)};
  }
  return std::nullopt;
}

// whole: as of ragged_flash_attention(), contiguous.
template <typename T>
std::optional<FlashGradients<T>> ragged_flash_attention_backward(
    const T& dout,
    const T& q,
    const T& k,
    const T& v,
    const FlashResult<T>& whole,
    const RaggedSequences<T>& of) {
  const T& out = whole.out;
  const T& lse = whole.lse;
  const T& bounds = of.bounds;
  const T state = no_dropout(lse);
  BRIGADE_IF_DECLARED(
      all,
      _flash_attention_backward(
          dout,
          q,
          k,
          v,
          out,
          lse,
          bounds,
          bounds,
          of.longest,
          of.longest,
          0.0,
          /*is_causal=*/true,
          state,
          state,
          of.scale,
          of.window_left,
          of.window_left ? std::optional<int64_t>(0) : std::nullopt)) {
    const auto [dq, dk, dv] = all;
    return FlashGradients<T>{dq, dk, dv};
  }
  return std::nullopt;
}

// Whether libtorch computes it on the CPU (or on CUDA) by a kernel of its own.
inline bool has_kernel(const char* name, const torch::Tensor& like) {
  if (!like.is_cpu() && !like.is_cuda())
    return false;
  const auto op = c10::Dispatcher::singleton().findSchema({name, ""});
  return op &&
         op->hasKernelForDispatchKey(
             like.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA);
}

// A step of AdamW in one pass over memory, with the numbers of adamw.h but for
// grad_scale, which is not applied. All flat float32.
template <typename T>
bool fused_adamw(
    const AdamWStep& step,
    const T& master,
    const T& grad,
    const T& exp_avg,
    const T& exp_avg_sq) {
  using List = std::vector<T>;
  if constexpr (requires(const List& list, double x) {
                  _fused_adamw_(
                      list,
                      list,
                      list,
                      list,
                      list,
                      list,
                      x,
                      x,
                      x,
                      x,
                      x,
                      false,
                      false);
                }) {
    if (master.numel() == 0 || !has_kernel("aten::_fused_adamw_", master))
      return false;
    _fused_adamw_(
        List{master},
        List{grad},
        List{exp_avg},
        List{exp_avg_sq},
        List{},
        List{at::full({}, static_cast<double>(step.step), master.options())},
        step.lr,
        step.beta1,
        step.beta2,
        step.weight_decay,
        step.eps,
        /*amsgrad=*/false,
        /*maximize=*/false);
    return true;
  }
  return false;
}

/// RMSNorm's result and what its backward needs.
template <typename T>
struct FusedNorm {
  T normed;  // [.., C] in x's dtype
  T rstd;    // wide [.., 1]
};
// RMSNorm of the last dim, computed in the wide dtype and rounded once; weight
// is of x's dtype. One kernel on CUDA.
template <typename T>
std::optional<FusedNorm<T>>
fused_rms_norm(const T& x, const T& weight, double eps) {
  BRIGADE_IF_DECLARED(all, _fused_rms_norm(x, {weight.size(0)}, weight, eps)) {
    return FusedNorm<T>{std::get<0>(all), std::get<1>(all)};
  }
  return std::nullopt;
}

// Whether a product of these matrices can be summed and kept in float32 without
// widening them: bf16 or half on CUDA.
template <typename T>
bool is_narrow_on_cuda(const T& a, const T& b) {
  return a.is_cuda() && a.dim() == 2 && b.dim() == 2 &&
         a.scalar_type() == b.scalar_type() &&
         (a.scalar_type() == torch::kBFloat16 ||
          a.scalar_type() == torch::kHalf);
}
// a b in float32, unrounded.
template <typename T>
std::optional<T> product_in_float32(const T& a, const T& b) {
  if (!is_narrow_on_cuda(a, b))
    return std::nullopt;
  BRIGADE_IF_DECLARED(product, mm(a, b, torch::kFloat)) {
    return product;
  }
  return std::nullopt;
}
// sum += a b, unrounded; sum: contiguous float32.
template <typename T>
bool add_product_in_float32(T sum, const T& a, const T& b) {
  if constexpr (requires { addmm_out(sum, sum, a, b, torch::kFloat); }) {
    if (is_narrow_on_cuda(a, b) && sum.scalar_type() == torch::kFloat &&
        sum.is_contiguous()) {
      addmm_out(sum, sum, a, b, torch::kFloat);
      return true;
    }
  }
  return false;
}

// Rows of a [R, K], bf16 on CUDA, times matrices of b [G, K, N]: those before
// ends[0] by the first, and so on. ends: int32 [G] on the device.
template <typename T>
std::optional<T> grouped_product(const T& a, const T& b, const T& ends) {
  if constexpr (requires { _grouped_mm(a, b, ends); })
    return _grouped_mm(a, b, ends);
  return std::nullopt;
}

}  // namespace brigade::ops
