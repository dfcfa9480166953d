// When each fragment of a model is exchanged between groups that train apart
// from one another (low-communication training), as a table.
//
// The first `warmup_steps` steps are data parallel, or the groups take their
// mean at the end of each `warmup_interval` of them. From then on a fragment is
// sent every `local_steps` steps and merged `delay` steps later. Fragments take
// turns, so that at most one is under way:
//
//   local_steps 6, 2 fragments, delay 1     s: sent, m: merged
//   step        1  2  3  4  5  6  7  8  9 10 11 12 13
//   fragment 0        s  m              s  m
//   fragment 1                 s  m              s  m
//
// With one fragment and delay 0 that is DiLoCo (arXiv:2311.08105), else its
// streaming variant (arXiv:2501.18512).
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brigade {

struct FragmentSchedule {
  int64_t local_steps = 1;  // between two sendings of one fragment
  int fragments = 1;
  int64_t delay = 0;            // steps from sending to merging
  int64_t warmup_steps = 0;     // before the first round
  int64_t warmup_interval = 1;  // 1: data parallel
  bool operator==(const FragmentSchedule&) const = default;
};

enum class FragmentAction {
  kSend,     // launch the sum of the changes over the groups
  kMerge,    // wait for it, step the common weights, take them over
  kAverage,  // wait for it, take the mean of the groups
};

struct FragmentEvent {
  FragmentAction action;
  int fragment;
  bool operator==(const FragmentEvent&) const = default;
};

// Adds a message where a fragment would not have a step of its own, or would
// still be under way when the next one is sent, or the warm-up would end
// between two exchanges.
void validate_fragment_schedule(
    const FragmentSchedule& schedule,
    std::vector<std::string>& problems);

// Whether step `step`, counted from 1, is data parallel over all groups.
bool is_data_parallel(const FragmentSchedule& schedule, int64_t step);

// What to do after step `step`, counted from 1, in this order. Expects a
// schedule that validate_fragment_schedule() accepted.
std::vector<FragmentEvent> fragment_events(
    const FragmentSchedule& schedule,
    int64_t step);

// Whether a fragment has been sent and not merged once the events of `step` are
// done.
bool is_under_way(const FragmentSchedule& schedule, int fragment, int64_t step);

// What the common weights do not have after `steps` steps: so many of the last
// ones, of the fragment that lacks most.
int64_t steps_not_merged(const FragmentSchedule& schedule, int64_t steps);

// The fragment of each layer: neighbours are in different fragments, so that
// every pipeline stage has a share of each.
int fragment_of_layer(int64_t layer, int fragments);

}  // namespace brigade
