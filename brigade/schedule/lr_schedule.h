// The learning rate of a step; training.lr_schedule and what belongs to it.
//
// PURE.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

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
  // warm-up, stable, decay as kWsd, by warmup_fraction and decay_fraction
  kTrapezoid,
  kTable,  // LrScheduleOptions::table
};
template <>
inline constexpr std::array kChoices<LrDecay>{
    Choice{LrDecay::kConstant, "constant"},
    Choice{LrDecay::kCosine, "cosine"},
    Choice{LrDecay::kLinear, "linear"},
    Choice{LrDecay::kWsd, "wsd"},
    Choice{LrDecay::kInverseSqrt, "inverse_sqrt"},
    Choice{LrDecay::kTrapezoid, "trapezoid"},
    Choice{LrDecay::kTable, "table"}};

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

// What a point of a table counts, from the beginning of the run on.
enum class PointUnit { kSteps, kTokens };
// The keys of a point in configs.
template <>
inline constexpr std::array kChoices<PointUnit>{
    Choice{PointUnit::kSteps, "step"},
    Choice{PointUnit::kTokens, "tokens"}};

// What the peak is multiplied with once so much was trained on.
struct LrPoint {
  int64_t after = 0;  // in LrTable::unit
  double factor = 1;
  bool operator==(const LrPoint&) const = default;
};

// Points with linear lines in between; the first holds before it, the last
// after it. `after` ascends; not empty.
struct LrTable {
  PointUnit unit = PointUnit::kSteps;
  std::vector<LrPoint> points;
  bool operator==(const LrTable&) const = default;
};

struct LrScheduleOptions {
  LrDecay decay = LrDecay::kConstant;
  double peak = 3e-4;
  double minimum = 0;
  int64_t warmup_steps = 0;  // linear from peak / warmup_steps to peak
  int64_t decay_steps = 0;   // kWsd; 0: a tenth of total_steps
  int64_t total_steps = 0;
  LrEnd end = LrEnd::kAfterLastStep;
  // kTrapezoid: of total_steps, rounded to whole steps.
  double warmup_fraction = 0;
  double decay_fraction = 0.2;
  std::optional<LrTable> table;  // kTable
  // A table by tokens: step s begins after (s - 1) * step_tokens + tokens_ahead
  // of them. tokens_ahead is what steps of another size trained.
  int64_t step_tokens = 0;
  int64_t tokens_ahead = 0;
};

// `step` counts from 1, as the log does. After the end cosine, linear, wsd and
// trapezoid hold the minimum, a table its last factor; constant and
// inverse_sqrt have no end.
double learning_rate(const LrScheduleOptions& options, int64_t step);

}  // namespace brigade
