// The learning rate of a step.
#pragma once

#include <cstdint>

namespace brigade {

enum class LrDecay {
  kConstant,
  kCosine,  // half a cosine from the peak to the minimum
  kLinear,
  kWsd,  // warmup, stable, decay: linear over the last decay_steps
};

struct LrScheduleOptions {
  LrDecay decay = LrDecay::kConstant;
  double peak = 3e-4;
  double minimum = 0;
  int64_t warmup_steps = 0;  // linear from peak / warmup_steps to peak
  int64_t decay_steps = 0;   // kWsd; 0: a tenth of total_steps
  int64_t total_steps = 0;
  // The step, counted from 1, at which the minimum is reached. Everybody else's
  // schedules (transformers, torchtitan) reach it one step after the last, so
  // that no step is wasted on a rate of 0.
  enum class End { kAfterLastStep, kAtLastStep };
  End end = End::kAfterLastStep;
};

// `step` counts from 1, as the log does. After the end the minimum holds.
double learning_rate(const LrScheduleOptions& options, int64_t step);

}  // namespace brigade
