#include "brigade/kernels/cpu/attention_kernel.h"
#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/attention_delta_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

template <typename T>
void delta(const AttentionDelta<T>& p, int64_t begin, int64_t end) {
  const auto columns = static_cast<size_t>(p.head_dim);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t batch = row / p.tokens;
    const int64_t token = row % p.tokens;
    for (int64_t head = 0; head < p.heads; ++head) {
      const T* dout = p.dout.at(batch, token, head);
      const T* out = p.out.at(batch, token, head);
      auto sum = hn::Zero(DF());
      for_vectors(columns, [&](size_t i, auto get, auto) HWY_ATTR {
        sum = hn::MulAdd(get(dout + i), get(out + i), sum);
      });
      p.delta[(batch * p.heads + head) * p.tokens + token] = sum_of_lanes(sum);
    }
  }
}

static constexpr auto& delta_f32 = delta<float>;
static constexpr auto& delta_bf16 = delta<uint16_t>;

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
BRIGADE_EXPORT_KERNEL(attention_delta, AttentionDelta, delta);

}  // namespace brigade::ops
#endif  // HWY_ONCE
