#include "brigade/ops/adamw_kernel.h"

#include "brigade/ops/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/ops/adamw_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/ops/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

template <typename T>
void step(const AdamWKernel<T>& p, int64_t begin, int64_t end) {
  const DF df;
  const auto grad_scale = hn::Set(df, p.grad_scale);
  const auto decay = hn::Set(df, p.decay);
  const auto beta1 = hn::Set(df, p.beta1);
  const auto one_minus_beta1 = hn::Set(df, p.one_minus_beta1);
  const auto beta2 = hn::Set(df, p.beta2);
  const auto one_minus_beta2 = hn::Set(df, p.one_minus_beta2);
  const auto inverse_root = hn::Set(df, p.inverse_root_correction2);
  const auto eps = hn::Set(df, p.eps);
  const auto step_size = hn::Set(df, p.step_size);
  float* main_grad = p.main_grad + begin;
  float* master = p.master + begin;
  float* exp_avg = p.exp_avg + begin;
  float* exp_avg_sq = p.exp_avg_sq + begin;
  T* weight = p.weight + begin;
  const bool write_weight =
      static_cast<const void*>(p.weight) != static_cast<const void*>(p.master);
  for_vectors(
      static_cast<size_t>(end - begin),
      [&](size_t i, auto get, auto put) HWY_ATTR {
        const auto g = hn::Mul(get(main_grad + i), grad_scale);
        const auto m =
            hn::MulAdd(g, one_minus_beta1, hn::Mul(get(exp_avg + i), beta1));
        const auto v = hn::MulAdd(
            hn::Mul(g, g),
            one_minus_beta2,
            hn::Mul(get(exp_avg_sq + i), beta2));
        put(m, exp_avg + i);
        put(v, exp_avg_sq + i);
        const auto denominator = hn::MulAdd(hn::Sqrt(v), inverse_root, eps);
        const auto w = hn::NegMulAdd(
            step_size,
            hn::Div(m, denominator),
            hn::Mul(get(master + i), decay));
        put(w, master + i);
        if (write_weight)
          put(w, weight + i);
        if (p.zero_main_grad)
          put(hn::Zero(df), main_grad + i);
      });
}

void step_f32(const AdamWKernel<float>& p, int64_t b, int64_t e) {
  step(p, b, e);
}
void step_bf16(const AdamWKernel<uint16_t>& p, int64_t b, int64_t e) {
  step(p, b, e);
}

// Squares in double: the largest float's square fits, so that only a value
// that is not finite makes a sum that is not.
double squares(const float* values, int64_t numel) {
#if HWY_HAVE_FLOAT64
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, hn::ScalableTag<double>> narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(dd));
  auto first = hn::Zero(dd);
  auto second = hn::Zero(dd);
  auto third = hn::Zero(dd);
  auto fourth = hn::Zero(dd);
  int64_t i = 0;
  for (; i + 4 * lanes <= numel; i += 4 * lanes) {
    const auto at = [&](int64_t k) HWY_ATTR {
      return hn::PromoteTo(dd, hn::LoadU(narrow, values + i + k * lanes));
    };
    const auto a = at(0);
    const auto b = at(1);
    const auto c = at(2);
    const auto d = at(3);
    first = hn::MulAdd(a, a, first);
    second = hn::MulAdd(b, b, second);
    third = hn::MulAdd(c, c, third);
    fourth = hn::MulAdd(d, d, fourth);
  }
  double sum = hn::GetLane(hn::SumOfLanes(
      dd, hn::Add(hn::Add(first, second), hn::Add(third, fourth))));
#else
  double sum = 0;
  int64_t i = 0;
#endif
  for (; i < numel; ++i)
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

}  // namespace brigade::ops::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::ops {
HWY_EXPORT(step_f32);
HWY_EXPORT(step_bf16);
HWY_EXPORT(squares);

void adamw_kernel(const AdamWKernel<float>& p, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(step_f32)(p, begin, end);
}
void adamw_kernel(const AdamWKernel<uint16_t>& p, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(step_bf16)(p, begin, end);
}
double sum_of_squares_kernel(const float* values, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(squares)(values, numel);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
