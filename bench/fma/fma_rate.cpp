#include "bench/fma/fma_rate.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "brigade/base/error.h"
#include "brigade/kernels/cpu/simd_targets.h"
#include "brigade/metrics/clock.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/fma/fma_rate.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace brigade::bench::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve sums that do not wait for one another, `rounds` times; the number of
// floating-point operations.
double multiply_add(int rounds, float* result) {
  const hn::ScalableTag<float> df;
  constexpr int kSums = 12;
  hn::Vec<decltype(df)> sums[kSums];
  for (auto& sum : sums)
    sum = hn::Zero(df);
  const auto factor = hn::Set(df, *result);
  for (int round = 0; round < rounds; ++round) {
    for (auto& sum : sums)
      sum = hn::MulAdd(sum, factor, factor);
  }
  auto total = sums[0];
  for (int i = 1; i < kSums; ++i)
    total = hn::Add(total, sums[i]);
  *result = hn::GetLane(hn::SumOfLanes(df, total));
  return 2.0 * kSums * rounds * static_cast<double>(hn::Lanes(df));
}

}  // namespace brigade::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace brigade::bench {
namespace {
HWY_EXPORT(multiply_add);
}  // namespace

double fma_gflops() {
  constexpr int kRounds = 2'000'000;
  constexpr int kRuns = 7;
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    volatile float start = 0.5F;
    float result = start;
    const int64_t begin = steady_now_ns();
    const double flops = HWY_DYNAMIC_DISPATCH(multiply_add)(kRounds, &result);
    const auto ns = static_cast<double>(steady_now_ns() - begin);
    start = result;
    best = std::max(best, flops / ns);
  }
  return best;
}

void restrict_target() {
  const char* name = std::getenv("BRIGADE_BENCH_TARGET");
  if (name == nullptr)
    return;
  for (int64_t left = hwy::SupportedTargets(); left != 0; left &= left - 1) {
    const int64_t target = left & -left;
    if (std::string_view(name) != hwy::TargetName(target))
      continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
    // libtorch asks the processor for bf16 products, and not DNNL_MAX_CPU_ISA.
    torch::globalContext().setUserEnabledMkldnn(false);
    return;
  }
  throw ConfigError(fmt::format(
      "[bench] BRIGADE_BENCH_TARGET={}: this processor has no such "
      "instructions",
      name));
}

}  // namespace brigade::bench
#endif  // HWY_ONCE
