#include "brigade/kernels/cpu/rms_norm_kernel.h"

#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/rms_norm_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

template <typename T>
void forward(const RmsNormForward<T>& p, int64_t begin, int64_t end) {
  const DF df;
  const auto columns = static_cast<size_t>(p.columns);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = p.x + row * p.x_stride;
    T* sum = p.sum + row * p.columns;
    auto squares = hn::Zero(df);
    if (p.residual != nullptr) {
      const T* residual = p.residual + row * p.residual_stride;
      for_vectors(columns, [&](size_t i, auto get, auto put) HWY_ATTR {
        put(hn::Add(get(x + i), get(residual + i)), sum + i);
        // The rounded sum is what is normed.
        const auto value = get(sum + i);
        squares = hn::MulAdd(value, value, squares);
      });
      x = sum;
    } else {
      for_vectors(columns, [&](size_t i, auto get, auto) HWY_ATTR {
        const auto value = get(x + i);
        squares = hn::MulAdd(value, value, squares);
      });
    }
    const float mean = sum_of_lanes(squares) / static_cast<float>(p.columns);
    const float rstd = 1.0F / std::sqrt(mean + p.eps);
    p.rstd[row] = rstd;
    const auto scale = hn::Set(df, rstd);
    const auto offset = hn::Set(df, p.weight_offset);
    T* normed = p.normed + row * p.columns;
    for_vectors(columns, [&](size_t i, auto get, auto put) HWY_ATTR {
      const auto weight = hn::Add(get(p.weight + i), offset);
      put(hn::Mul(hn::Mul(get(x + i), scale), weight), normed + i);
    });
  }
}

template <typename T>
void backward(const RmsNormBackward<T>& p, int64_t begin, int64_t end) {
  const DF df;
  const auto columns = static_cast<size_t>(p.columns);
  for (int64_t row = begin; row < end; ++row) {
    const T* dnormed = p.dnormed + row * p.dnormed_stride;
    const T* dsum = p.dsum == nullptr ? nullptr : p.dsum + row * p.dsum_stride;
    const T* x = p.x + row * p.x_stride;
    T* dx = p.dx + row * p.columns;
    const auto rstd = hn::Set(df, p.rstd[row]);
    const auto offset = hn::Set(df, p.weight_offset);
    auto dots = hn::Zero(df);
    for_vectors(columns, [&](size_t i, auto get, auto put) HWY_ATTR {
      const auto gradient = get(dnormed + i);
      const auto normal = hn::Mul(get(x + i), rstd);
      const auto weight = hn::Add(get(p.weight + i), offset);
      dots = hn::MulAdd(hn::Mul(gradient, weight), normal, dots);
      put(hn::MulAdd(gradient, normal, get(p.dweight + i)), p.dweight + i);
    });
    const auto mean =
        hn::Set(df, sum_of_lanes(dots) / static_cast<float>(p.columns));
    for_vectors(columns, [&](size_t i, auto get, auto put) HWY_ATTR {
      const auto normal = hn::Mul(get(x + i), rstd);
      const auto weight = hn::Add(get(p.weight + i), offset);
      const auto inner =
          hn::NegMulAdd(normal, mean, hn::Mul(get(dnormed + i), weight));
      const auto other = dsum == nullptr ? hn::Zero(df) : get(dsum + i);
      put(hn::MulAdd(inner, rstd, other), dx + i);
    });
  }
}

void forward_f32(const RmsNormForward<float>& p, int64_t b, int64_t e) {
  forward(p, b, e);
}
void forward_bf16(const RmsNormForward<uint16_t>& p, int64_t b, int64_t e) {
  forward(p, b, e);
}
void backward_f32(const RmsNormBackward<float>& p, int64_t b, int64_t e) {
  backward(p, b, e);
}
void backward_bf16(const RmsNormBackward<uint16_t>& p, int64_t b, int64_t e) {
  backward(p, b, e);
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
HWY_EXPORT(forward_f32);
HWY_EXPORT(forward_bf16);
HWY_EXPORT(backward_f32);
HWY_EXPORT(backward_bf16);

void rms_norm_forward(
    const RmsNormForward<float>& p,
    int64_t begin,
    int64_t end) {
  HWY_DYNAMIC_DISPATCH(forward_f32)(p, begin, end);
}
void rms_norm_forward(
    const RmsNormForward<uint16_t>& p,
    int64_t begin,
    int64_t end) {
  HWY_DYNAMIC_DISPATCH(forward_bf16)(p, begin, end);
}
void rms_norm_backward(
    const RmsNormBackward<float>& p,
    int64_t begin,
    int64_t end) {
  HWY_DYNAMIC_DISPATCH(backward_f32)(p, begin, end);
}
void rms_norm_backward(
    const RmsNormBackward<uint16_t>& p,
    int64_t begin,
    int64_t end) {
  HWY_DYNAMIC_DISPATCH(backward_bf16)(p, begin, end);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
