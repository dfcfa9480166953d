#include "brigade/schedule/make_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "brigade/base/check.h"
#include "brigade/base/error.h"
#include "brigade/schedule/interleaved_1f1b.h"
#include "brigade/schedule/one_f_one_b.h"

namespace brigade {
namespace {

// A larger table comes from a typing error, not from a run.
constexpr int64_t kMaxComputations = 1'000'000;

void check_positive(
    const char* what,
    int value,
    std::vector<std::string>& problems) {
  if (value < 1)
    problems.push_back(fmt::format(
        "[pipeline_parallel] {} is {}, but at least 1 is needed", what, value));
}

Schedule finished(Schedule computation) {
  Schedule schedule = add_communication(std::move(computation));
  const std::vector<std::string> problems = validate(schedule);
  BRIGADE_ASSERT(
      problems.empty(),
      "{} of {} ranks, {} virtual stages, {} micro-batches: {}",
      schedule.name,
      schedule.ranks,
      schedule.virtual_stages,
      schedule.micro_batches,
      fmt::join(problems, "; "));
  return schedule;
}

}  // namespace

void validate_pipeline_size(
    ScheduleKind kind,
    const PipelineSize& size,
    std::vector<std::string>& problems) {
  const size_t before = problems.size();
  check_positive("pp_size", size.ranks, problems);
  check_positive("pp_virtual_stages", size.virtual_stages, problems);
  check_positive(
      "the number of micro-batches (gradient_accumulation_steps)",
      size.micro_batches,
      problems);
  if (problems.size() > before)
    return;
  const bool interleaved = kind == ScheduleKind::kInterleaved1F1B;
  // One rank runs any kind as the plain loop.
  if (interleaved && size.virtual_stages < 2 && size.ranks > 1)
    problems.push_back(
        "[pipeline_parallel] interleaved_1f1b needs pp_virtual_stages of at "
        "least 2, but it is 1; with 1 it would be 1f1b");
  if (!interleaved && size.virtual_stages > 1)
    problems.push_back(fmt::format(
        "[pipeline_parallel] pp_virtual_stages is {}, but {} has one stage "
        "per rank; interleaved_1f1b has more",
        size.virtual_stages,
        to_string(kind)));
  if (interleaved && size.micro_batches < size.ranks)
    problems.push_back(fmt::format(
        "[pipeline_parallel] interleaved_1f1b on {} ranks needs at least {} "
        "micro-batches per step (gradient_accumulation_steps), but there are "
        "{}",
        size.ranks,
        size.ranks,
        size.micro_batches));
  const int64_t stages = static_cast<int64_t>(size.ranks) * size.virtual_stages;
  if (stages > kMaxComputations / size.micro_batches)
    problems.push_back(fmt::format(
        "[pipeline_parallel] {} stages of {} micro-batches are more than the "
        "{} computations a table may hold",
        stages,
        size.micro_batches,
        kMaxComputations));
}

Schedule make_computation(ScheduleKind kind, const PipelineSize& size) {
  switch (kind) {
    case ScheduleKind::kAfab: {
      if (size.ranks > 1)
        return make_afab(size.ranks, size.micro_batches);
      // All forwards first would keep every micro-batch without any overlap.
      Schedule loop = make_one_f_one_b(1, size.micro_batches);
      loop.name = to_string(kind);
      return loop;
    }
    case ScheduleKind::kOneFOneB:
      return make_one_f_one_b(size.ranks, size.micro_batches);
    case ScheduleKind::kInterleaved1F1B:
      return make_interleaved_1f1b(
          size.ranks, size.virtual_stages, size.micro_batches);
    case ScheduleKind::kZeroBubble:
      return make_zero_bubble(size.ranks, size.micro_batches);
  }
  BRIGADE_ASSERT(false, "schedule kind {}", static_cast<int>(kind));
}

Schedule make_schedule(ScheduleKind kind, const PipelineSize& size) {
  std::vector<std::string> problems;
  validate_pipeline_size(kind, size, problems);
  if (!problems.empty())
    throw ConfigError(problems);
  return finished(make_computation(kind, size));
}

Schedule make_evaluation_schedule(const PipelineSize& size) {
  return finished(
      make_forward_only(size.ranks, size.virtual_stages, size.micro_batches));
}

}  // namespace brigade
