// Gradients of attention over a part of the keys, which add up.
#include "brigade/kernels/cpu/attention_kernel.h"
#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/partial_gradient_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

template <typename T>
void add_rotated(
    T* sum,
    const T* other,
    const float* cos,
    const float* sin,
    int64_t half) {
  for_vectors(
      static_cast<size_t>(half), [&](size_t i, auto get, auto put) HWY_ATTR {
        const auto a = get(other + i);
        const auto b = get(other + half + i);
        const auto c = get(cos + i);
        const auto s = get(sin + i);
        const auto first = hn::MulAdd(b, s, hn::Mul(a, c));
        const auto second = hn::NegMulAdd(a, s, hn::Mul(b, c));
        put(hn::Add(get(sum + i), first), sum + i);
        put(hn::Add(get(sum + half + i), second), sum + half + i);
      });
}

template <typename T>
void add(const AddPartialGradient<T>& p, int64_t begin, int64_t end) {
  const auto columns = static_cast<size_t>(p.head_dim);
  const int64_t half = p.head_dim / 2;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / p.tokens;
    const int64_t token = row % p.tokens;
    for (int64_t head = 0; head < p.heads; ++head) {
      T* sum = p.sum.at(batch, token, head);
      const T* other = p.other.at(batch, token, head);
      if (p.rotation.cos == nullptr) {
        for_vectors(columns, [&](size_t i, auto get, auto put) HWY_ATTR {
          put(hn::Add(get(sum + i), get(other + i)), sum + i);
        });
        continue;
      }
      add_rotated(
          sum,
          other,
          p.rotation.cos + token * half,
          p.rotation.sin + token * half,
          half);
    }
  }
}

static constexpr auto& add_f32 = add<float>;
static constexpr auto& add_bf16 = add<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
BRIGADE_EXPORT_KERNEL(add_partial_gradient, AddPartialGradient, add);

}  // namespace brigade::ops
#endif  // HWY_ONCE
