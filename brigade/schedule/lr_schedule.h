// The learning rate of a step; training.lr_schedule and what belongs to it.
//
// PURE.
#pragma once

#include <cstdint>

#include "brigade/options/choice.h"

namespace brigade {

enum class LrDecay {
  kConstant,
  kCosine,  // half a cosine from the peak to the minimum
  kLinear,
  kWsd,  // warmup, stable, decay: linear over the last decay_steps
  // peak / sqrt(steps / warmup_steps): whenever the run ends (Vaswani et al.
  // 2017). Without a warm-up as with one of 10,000 steps, begun at the peak.
  kInverseSqrt,
};
template <>
inline constexpr std::array kChoices<LrDecay>{
    Choice{LrDecay::kConstant, "constant"},
    Choice{LrDecay::kCosine, "cosine"},
    Choice{LrDecay::kLinear, "linear"},
    Choice{LrDecay::kWsd, "wsd"},
    Choice{LrDecay::kInverseSqrt, "inverse_sqrt"}};

// The step, counted from 1, at which the minimum is reached; training.lr_end.
enum class LrEnd {
  // One after the last, so that no step is wasted on a rate of 0, as everybody
  // else's schedules do (transformers, torchtitan).
  kAfterLastStep,
  kAtTotalTrainSteps,  // total_steps itself: runs of older versions
};
template <>
inline constexpr std::array kChoices<LrEnd>{
    Choice{LrEnd::kAfterLastStep, "after_last_step"},
    Choice{LrEnd::kAtTotalTrainSteps, "at_total_train_steps"}};

struct LrScheduleOptions {
  LrDecay decay = LrDecay::kConstant;
  double peak = 3e-4;
  double minimum = 0;
  int64_t warmup_steps = 0;  // linear from peak / warmup_steps to peak
  int64_t decay_steps = 0;   // kWsd; 0: a tenth of total_steps
  int64_t total_steps = 0;
  LrEnd end = LrEnd::kAfterLastStep;
};

// `step` counts from 1, as the log does. After the end the minimum holds.
double learning_rate(const LrScheduleOptions& options, int64_t step);

}  // namespace brigade
