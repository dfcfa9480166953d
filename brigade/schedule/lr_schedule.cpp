#include "brigade/schedule/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace brigade {
namespace {

// transformers' factor, so many steps after the warm-up.
double inverse_sqrt(int64_t warmup_steps, int64_t since_warmup) {
  constexpr int64_t kWithoutWarmup = 10000;
  const auto scale =
      static_cast<double>(warmup_steps > 0 ? warmup_steps : kWithoutWarmup);
  return std::sqrt(scale / (static_cast<double>(since_warmup) + scale));
}

}  // namespace

double learning_rate(const LrScheduleOptions& options, int64_t step) {
  if (step <= options.warmup_steps) {
    return options.peak * static_cast<double>(step) /
           static_cast<double>(options.warmup_steps);
  }
  const int64_t total = std::max(options.total_steps, int64_t{1});
  const int64_t wsd_steps = options.decay_steps > 0
                                ? options.decay_steps
                                : std::max<int64_t>(1, total / 10);
  const int64_t decay_begin =
      options.decay == LrDecay::kWsd
          ? std::max(options.warmup_steps, total - wsd_steps)
          : options.warmup_steps;
  const int64_t done =
      options.end == LrEnd::kAtTotalTrainSteps ? step : step - 1;
  const double progress = std::clamp(
      static_cast<double>(done - decay_begin) /
          static_cast<double>(std::max<int64_t>(1, total - decay_begin)),
      0.0,
      1.0);
  const double range = options.peak - options.minimum;
  switch (options.decay) {
    case LrDecay::kConstant:
      return options.peak;
    case LrDecay::kCosine:
      return options.minimum +
             range * 0.5 * (1 + std::cos(std::numbers::pi * progress));
    case LrDecay::kLinear:
    case LrDecay::kWsd:
      return options.minimum + range * (1 - progress);
    case LrDecay::kInverseSqrt:
      return std::max(
          options.minimum,
          options.peak *
              inverse_sqrt(options.warmup_steps, done - options.warmup_steps));
  }
  return options.peak;
}

}  // namespace brigade
