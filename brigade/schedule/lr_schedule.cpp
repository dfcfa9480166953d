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

double table_factor(const LrTable& table, double trained) {
  const auto& points = table.points;
  size_t next = 0;
  while (next < points.size() &&
         static_cast<double>(points[next].after) <= trained)
    ++next;
  if (next == 0 || next == points.size())
    return points[next == 0 ? 0 : next - 1].factor;
  const LrPoint& from = points[next - 1];
  const LrPoint& to = points[next];
  const double share = (trained - static_cast<double>(from.after)) /
                       static_cast<double>(to.after - from.after);
  return from.factor + share * (to.factor - from.factor);
}

double table_rate(const LrScheduleOptions& options, int64_t step) {
  const int64_t done = step - 1;
  const int64_t trained =
      options.table->unit == PointUnit::kSteps
          ? done
          : done * options.step_tokens + options.tokens_ahead;
  return options.peak *
         table_factor(*options.table, static_cast<double>(trained));
}

// A trapezoid is a wsd with fractions in place of steps.
LrScheduleOptions as_wsd(const LrScheduleOptions& trapezoid) {
  LrScheduleOptions wsd = trapezoid;
  const auto steps = [&](double fraction) {
    return std::llround(fraction * static_cast<double>(trapezoid.total_steps));
  };
  wsd.decay = LrDecay::kWsd;
  wsd.warmup_steps = steps(trapezoid.warmup_fraction);
  wsd.decay_steps = std::max<int64_t>(1, steps(trapezoid.decay_fraction));
  if (trapezoid.decay_fraction == 0)
    wsd.minimum = wsd.peak;
  return wsd;
}

}  // namespace

double learning_rate(const LrScheduleOptions& options, int64_t step) {
  if (options.decay == LrDecay::kTable)
    return table_rate(options, step);
  if (options.decay == LrDecay::kTrapezoid)
    return learning_rate(as_wsd(options), step);
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
    case LrDecay::kTrapezoid:
    case LrDecay::kTable:
      break;  // above
  }
  return options.peak;
}

}  // namespace brigade
