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

static constexpr auto& forward_f32 = forward<float>;
static constexpr auto& forward_bf16 = forward<uint16_t>;
static constexpr auto& backward_f32 = backward<float>;
static constexpr auto& backward_bf16 = backward<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
BRIGADE_EXPORT_KERNEL(rms_norm_forward, RmsNormForward, forward);
BRIGADE_EXPORT_KERNEL(rms_norm_backward, RmsNormBackward, backward);

}  // namespace brigade::ops
#endif  // HWY_ONCE
