// The schedules by name (distributed.pp_engine), complete and proved.
//
// PURE.
#pragma once

#include <string>
#include <vector>

#include "brigade/options/choice.h"
#include "brigade/schedule/schedule.h"

namespace brigade {

enum class ScheduleKind { kAfab, kOneFOneB, kInterleaved1F1B, kZeroBubble };
template <>
inline constexpr std::array kChoices<ScheduleKind>{
    Choice{ScheduleKind::kOneFOneB, "1f1b"},
    Choice{ScheduleKind::kAfab, "afab"},
    Choice{ScheduleKind::kInterleaved1F1B, "interleaved_1f1b"},
    Choice{ScheduleKind::kZeroBubble, "zero_bubble"}};

struct PipelineSize {
  int ranks = 1;
  int virtual_stages = 1;  // distributed.pp_virtual_stages
  int micro_batches = 1;   // training.gradient_accumulation_steps
};

// Checks the sizes of a step against the schedule; adds one message per
// problem, with the numbers that would fit.
void validate_pipeline_size(
    ScheduleKind kind,
    const PipelineSize& size,
    std::vector<std::string>& problems);

// Its computation alone, of sizes in which validate_pipeline_size() finds
// nothing. One rank runs afab as 1f1b's loop.
Schedule make_computation(ScheduleKind kind, const PipelineSize& size);

// A whole step: computation, communication and gradient reductions. Throws
// ConfigError with what validate_pipeline_size() finds.
Schedule make_schedule(ScheduleKind kind, const PipelineSize& size);

// Forward alone, for evaluation under the same layout; any micro_batches from
// 1 on.
Schedule make_evaluation_schedule(const PipelineSize& size);

}  // namespace brigade
