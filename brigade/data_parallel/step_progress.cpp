#include "brigade/data_parallel/step_progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "brigade/base/error.h"

namespace brigade {

StepProgress::StepProgress(std::span<const Param> params)
    : params_(params), steps_(params.size()) {}

void StepProgress::reset() {
  for (ParamStep& step : steps_) {
    step.state = ReadyState::kNone;
    step.reaches = 0;
  }
  ready_order_.clear();
}

void StepProgress::reopen() {
  for (ParamStep& step : steps_) {
    if (step.state == ReadyState::kReady)
      step.state = ReadyState::kAccumulated;
  }
}

std::vector<int64_t> StepProgress::complete_order() const {
  std::vector<int64_t> order(ready_order_.begin(), ready_order_.end());
  const std::vector<int64_t> is_listed = used();
  for (size_t i = 0; i < is_listed.size(); ++i) {
    if (is_listed[i] == 0)
      order.push_back(static_cast<int64_t>(i));
  }
  return order;
}

std::vector<int64_t> StepProgress::used() const {
  std::vector<int64_t> used(steps_.size(), 0);
  for (const int param : ready_order_)
    used[static_cast<size_t>(param)] = 1;
  return used;
}

bool StepProgress::all_have_gradients() const {
  return std::ranges::find(steps_, ReadyState::kNone, &ParamStep::state) ==
         steps_.end();
}

bool StepProgress::count_reach(int param) {
  ParamStep& step = of(param);
  ++step.reaches;
  return !is_first_step_ && step.reaches >= step.expected_reaches;
}

void StepProgress::expect_these_reaches() {
  if (!std::exchange(is_first_step_, false))
    return;
  for (ParamStep& step : steps_)
    step.expected_reaches = step.reaches;
}

std::string StepProgress::names_of(ReadyState state) const {
  constexpr int kShown = 8;
  std::string names;
  int count = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].state != state || ++count > kShown)
      continue;
    names += (count == 1 ? "" : ", ") + params_[i].name;
  }
  return count > kShown ? names + ", ..." : names;
}

void StepProgress::throw_if_missing() const {
  const auto missing =
      std::ranges::count(steps_, ReadyState::kNone, &ParamStep::state);
  if (missing == 0)
    return;
  throw UsageError(fmt::format(
      "[data_parallel] {} of {} parameters got no gradient in this step: {}. "
      "Use them in the loss, freeze them before wrapping, or set "
      "missing_gradient = kZero",
      missing,
      steps_.size(),
      names_of(ReadyState::kNone)));
}

}  // namespace brigade
