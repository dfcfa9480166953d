#include "brigade/kernels/cpu/elementwise_kernel.h"

#include <cstring>
#include <type_traits>

#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/elementwise_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// 1 / (1 + exp(-x)); for bf16 by the processor's estimate of a reciprocal (8 to
// 14 bits) and a Newton step, which leave errors far below bf16's rounding.
template <typename T>
HWY_INLINE VF sigmoid(VF x) {
  const DF df;
  const auto one = hn::Set(df, 1.0F);
  if constexpr (std::is_same_v<T, float>)
    return hn::Div(one, hn::Add(one, fast_exp(hn::Neg(x))));
  // Bounded, so that the product of the Newton step is finite.
  const auto power =
      hn::Min(hn::Set(df, 100.0F), hn::Mul(x, hn::Set(df, -kLog2E)));
  const auto below = hn::Add(one, fast_exp2(power));
  const auto guess = hn::ApproximateReciprocal(below);
  return hn::Mul(guess, hn::NegMulAdd(below, guess, hn::Set(df, 2.0F)));
}

template <typename T>
void forward(const SwigluForward<T>& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = p.gate + row * p.gate_stride;
    const T* up = p.up + row * p.up_stride;
    T* out = p.out + row * p.columns;
    for_vectors(
        static_cast<size_t>(p.columns),
        [&](size_t i, auto get, auto put) HWY_ATTR {
          const auto x = get(gate + i);
          put(hn::Mul(hn::Mul(x, sigmoid<T>(x)), get(up + i)), out + i);
        });
  }
}

template <typename T>
void backward(const SwigluBackward<T>& p, int64_t begin, int64_t end) {
  const auto one = hn::Set(DF(), 1.0F);
  for (int64_t row = begin; row < end; ++row) {
    const T* dout = p.dout + row * p.dout_stride;
    const T* gate = p.gate + row * p.gate_stride;
    const T* up = p.up + row * p.up_stride;
    T* dgate = p.dgate + row * p.dgate_stride;
    T* dup = p.dup + row * p.dup_stride;
    for_vectors(
        static_cast<size_t>(p.columns),
        [&](size_t i, auto get, auto put) HWY_ATTR {
          const auto x = get(gate + i);
          const auto gradient = get(dout + i);
          const auto s = sigmoid<T>(x);
          const auto silu = hn::Mul(x, s);
          // silu' = s * (1 + x * (1 - s))
          const auto slope = hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
          const auto dvalue = hn::Mul(hn::Mul(gradient, get(up + i)), slope);
          put(dvalue, dgate + i);
          put(hn::Mul(gradient, silu), dup + i);
        });
  }
}

template <typename T>
void rotate_rows(const Rotate<T>& p, int64_t begin, int64_t end) {
  const auto sign = hn::Set(DF(), p.sign);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / p.tokens;
    const int64_t token = row % p.tokens;
    const int64_t half = p.head_dim / 2;
    for (int64_t head = 0; head < p.heads; ++head) {
      const T* x = p.x + p.x_strides.of(batch, token, head);
      T* y = p.y + p.y_strides.of(batch, token, head);
      if (p.cos == nullptr) {
        std::memcpy(y, x, static_cast<size_t>(p.head_dim) * sizeof(T));
        continue;
      }
      const float* cos = p.cos + token * half;
      const float* sin = p.sin + token * half;
      for_vectors(
          static_cast<size_t>(half),
          [&](size_t i, auto get, auto put) HWY_ATTR {
            const auto first = get(x + i);
            const auto second = get(x + half + i);
            const auto c = get(cos + i);
            const auto s = hn::Mul(get(sin + i), sign);
            put(hn::NegMulAdd(second, s, hn::Mul(first, c)), y + i);
            put(hn::MulAdd(first, s, hn::Mul(second, c)), y + half + i);
          });
    }
  }
}

static constexpr auto& forward_f32 = forward<float>;
static constexpr auto& forward_bf16 = forward<uint16_t>;
static constexpr auto& backward_f32 = backward<float>;
static constexpr auto& backward_bf16 = backward<uint16_t>;
static constexpr auto& rotate_f32 = rotate_rows<float>;
static constexpr auto& rotate_bf16 = rotate_rows<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
BRIGADE_EXPORT_KERNEL(swiglu_forward, SwigluForward, forward);
BRIGADE_EXPORT_KERNEL(swiglu_backward, SwigluBackward, backward);
BRIGADE_EXPORT_KERNEL(rotate, Rotate, rotate);

}  // namespace brigade::ops
#endif  // HWY_ONCE
