#include "brigade/kernels/cpu/adamw_kernel.h"

#include "brigade/kernels/cpu/simd_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "brigade/kernels/cpu/adamw_cpu.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After highway.h.
#include "brigade/kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::ops::HWY_NAMESPACE {

// A float32 weight is its own master; for the other see split_master.h.
HWY_INLINE VF load_master(const float* weight, const uint16_t*) {
  return hn::LoadU(DF(), weight);
}
HWY_INLINE VF load_master(const uint16_t* weight, const uint16_t* low) {
  const auto signed_low = hn::ShiftRight<16>(
      hn::BitCast(DI32(), load(DF(), low)));  // from the upper halves
  const auto upper = hn::BitCast(DI32(), load(DF(), weight));
  return hn::BitCast(DF(), hn::Add(upper, signed_low));
}
HWY_INLINE void store_master(VF master, float* weight, uint16_t*) {
  hn::StoreU(master, DF(), weight);
}
HWY_INLINE void store_master(VF master, uint16_t* weight, uint16_t* low) {
  const DU32 du;
  const auto is_nan = hn::RebindMask(du, hn::IsNaN(master));
  const auto bits =
      hn::IfThenElse(is_nan, hn::Set(du, 0x7fc00000), hn::BitCast(du, master));
  const auto rounded = hn::Add(bits, hn::Set(du, 0x8000));
  store_low_halves(hn::ShiftRight<16>(rounded), weight);
  store_low_halves(hn::And(bits, hn::Set(du, 0xffff)), low);
}

// One vector of elements from `at` on.
template <typename T>
class VectorStep {
 public:
  explicit VectorStep(const AdamWKernel<T>& p)
      : grad_scale_(hn::Set(DF(), p.grad_scale)),
        decay_(hn::Set(DF(), p.decay)),
        beta1_(hn::Set(DF(), p.beta1)),
        one_minus_beta1_(hn::Set(DF(), p.one_minus_beta1)),
        beta2_(hn::Set(DF(), p.beta2)),
        one_minus_beta2_(hn::Set(DF(), p.one_minus_beta2)),
        inverse_root_(hn::Set(DF(), p.inverse_root_correction2)),
        eps_(hn::Set(DF(), p.eps)),
        step_size_(hn::Set(DF(), p.step_size)) {}

  HWY_INLINE void operator()(const AdamWKernel<T>& p, int64_t at) const {
    const DF df;
    float* main_grad = p.main_grad + at;
    float* exp_avg = p.exp_avg + at;
    float* exp_avg_sq = p.exp_avg_sq + at;
    T* weight = p.weight + at;
    uint16_t* low = sizeof(T) == 2 ? p.master_low + at : nullptr;
    const auto g = hn::Mul(hn::LoadU(df, main_grad), grad_scale_);
    const auto m = hn::MulAdd(
        g, one_minus_beta1_, hn::Mul(hn::LoadU(df, exp_avg), beta1_));
    const auto v = hn::MulAdd(
        hn::Mul(g, g),
        one_minus_beta2_,
        hn::Mul(hn::LoadU(df, exp_avg_sq), beta2_));
    hn::StoreU(m, df, exp_avg);
    hn::StoreU(v, df, exp_avg_sq);
    const auto denominator = hn::MulAdd(hn::Sqrt(v), inverse_root_, eps_);
    const auto w = hn::NegMulAdd(
        step_size_,
        hn::Div(m, denominator),
        hn::Mul(load_master(weight, low), decay_));
    store_master(w, weight, low);
    if (p.zero_main_grad)
      hn::StoreU(hn::Zero(df), df, main_grad);
  }

 private:
  VF grad_scale_, decay_, beta1_, one_minus_beta1_, beta2_, one_minus_beta2_,
      inverse_root_, eps_, step_size_;
};

// The last elements, fewer than a vector, in a vector of their own.
template <typename T>
void step_rest(
    const AdamWKernel<T>& p,
    const VectorStep<T>& step,
    int64_t begin,
    size_t numel) {
  constexpr size_t kMost = HWY_LANES(float);
  HWY_ALIGN float main_grad[kMost] = {};
  HWY_ALIGN float exp_avg[kMost] = {};
  HWY_ALIGN float exp_avg_sq[kMost] = {};
  HWY_ALIGN T weight[kMost] = {};
  HWY_ALIGN uint16_t low[kMost] = {};
  const auto copy = [numel](auto* to, const auto* from) {
    std::memcpy(to, from, numel * sizeof(*to));
  };
  copy(main_grad, p.main_grad + begin);
  copy(exp_avg, p.exp_avg + begin);
  copy(exp_avg_sq, p.exp_avg_sq + begin);
  copy(weight, p.weight + begin);
  if (sizeof(T) == 2)
    copy(low, p.master_low + begin);
  AdamWKernel<T> rest = p;
  rest.main_grad = main_grad;
  rest.exp_avg = exp_avg;
  rest.exp_avg_sq = exp_avg_sq;
  rest.weight = weight;
  rest.master_low = low;
  step(rest, 0);
  copy(p.main_grad + begin, main_grad);
  copy(p.exp_avg + begin, exp_avg);
  copy(p.exp_avg_sq + begin, exp_avg_sq);
  copy(p.weight + begin, weight);
  if (sizeof(T) == 2)
    copy(p.master_low + begin, low);
}

template <typename T>
void step_all(const AdamWKernel<T>& p, int64_t begin, int64_t end) {
  const VectorStep<T> step(p);
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes)
    step(p, i);
  if (i < end)
    step_rest(p, step, i, static_cast<size_t>(end - i));
}

static constexpr auto& step_f32 = step_all<float>;
static constexpr auto& step_bf16 = step_all<uint16_t>;

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
BRIGADE_EXPORT_KERNEL(adamw_kernel, AdamWKernel, step);
HWY_EXPORT(squares);

double sum_of_squares_kernel(const float* values, int64_t numel) {
  return HWY_DYNAMIC_DISPATCH(squares)(values, numel);
}

}  // namespace brigade::ops
#endif  // HWY_ONCE
