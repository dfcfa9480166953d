#include "brigade/schedule/fragment_schedule.h"

#include <fmt/format.h>

#include <algorithm>

namespace brigade {
namespace {

// The step of each round, from 1 to local_steps, after which it is sent.
int64_t step_of_round(const FragmentSchedule& schedule, int fragment) {
  return schedule.local_steps * (fragment + 1) / schedule.fragments;
}

bool is_sent_after(
    const FragmentSchedule& schedule,
    int fragment,
    int64_t step) {
  const int64_t of_rounds = step - schedule.warmup_steps;
  return of_rounds > 0 && (of_rounds - step_of_round(schedule, fragment)) %
                                  schedule.local_steps ==
                              0;
}

}  // namespace

void validate_fragment_schedule(
    const FragmentSchedule& schedule,
    std::vector<std::string>& problems) {
  if (schedule.warmup_steps % schedule.warmup_interval != 0)
    problems.push_back(fmt::format(
        "[config] /distributed/local_warmup_interval = {} does not divide "
        "/distributed/local_warmup_steps = {}: the warm-up would end between "
        "two exchanges; make it a multiple",
        schedule.warmup_interval,
        schedule.warmup_steps));
  if (schedule.fragments > schedule.local_steps) {
    problems.push_back(fmt::format(
        "[config] /distributed/outer_fragments = {} is more than "
        "/distributed/local_steps = {}: each fragment is sent after a step of "
        "its own",
        schedule.fragments,
        schedule.local_steps));
    return;
  }
  const int64_t between = schedule.local_steps / schedule.fragments;
  if (schedule.delay >= between)
    problems.push_back(fmt::format(
        "[config] /distributed/outer_delay = {}: the next fragment is sent {} "
        "steps after one (local_steps / outer_fragments); give at most {}",
        schedule.delay,
        between,
        between - 1));
}

bool is_data_parallel(const FragmentSchedule& schedule, int64_t step) {
  return step <= schedule.warmup_steps && schedule.warmup_interval == 1;
}

std::vector<FragmentEvent> fragment_events(
    const FragmentSchedule& schedule,
    int64_t step) {
  std::vector<FragmentEvent> events;
  if (step <= schedule.warmup_steps) {
    if (is_data_parallel(schedule, step) ||
        step % schedule.warmup_interval != 0)
      return events;
    for (int fragment = 0; fragment < schedule.fragments; ++fragment) {
      events.push_back({FragmentAction::kSend, fragment});
      events.push_back({FragmentAction::kAverage, fragment});
    }
    return events;
  }
  const auto add = [&](FragmentAction action, int64_t sent_after) {
    for (int fragment = 0; fragment < schedule.fragments; ++fragment) {
      if (is_sent_after(schedule, fragment, sent_after))
        events.push_back({action, fragment});
    }
  };
  // The one under way ends before the next begins; without delay it is the same
  // one.
  if (schedule.delay > 0)
    add(FragmentAction::kMerge, step - schedule.delay);
  add(FragmentAction::kSend, step);
  if (schedule.delay == 0)
    add(FragmentAction::kMerge, step);
  return events;
}

bool is_under_way(
    const FragmentSchedule& schedule,
    int fragment,
    int64_t step) {
  for (int64_t ago = 0; ago < schedule.delay; ++ago) {
    if (is_sent_after(schedule, fragment, step - ago))
      return true;
  }
  return false;
}

int64_t steps_not_merged(const FragmentSchedule& schedule, int64_t steps) {
  if (steps <= schedule.warmup_steps)
    return steps % schedule.warmup_interval;
  int64_t most = 0;
  for (int fragment = 0; fragment < schedule.fragments; ++fragment) {
    int64_t sent = steps - schedule.delay;
    while (sent > schedule.warmup_steps &&
           !is_sent_after(schedule, fragment, sent))
      --sent;
    most = std::max(most, steps - std::max(sent, schedule.warmup_steps));
  }
  return most;
}

int fragment_of_layer(int64_t layer, int fragments) {
  return static_cast<int>(layer % fragments);
}

}  // namespace brigade
