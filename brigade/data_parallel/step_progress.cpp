#include "brigade/data_parallel/step_progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"

namespace brigade {

StepProgress::StepProgress(std::span<const Param> params)
    : params_(params),
      states_(params.size(), ReadyState::kNone),
      reaches_(params.size(), 0) {}

void StepProgress::reset() {
  std::fill(states_.begin(), states_.end(), ReadyState::kNone);
  std::fill(reaches_.begin(), reaches_.end(), 0);
  ready_order_.clear();
}

void StepProgress::reopen() {
  for (ReadyState& state : states_) {
    if (state == ReadyState::kReady)
      state = ReadyState::kAccumulated;
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
  std::vector<int64_t> used(states_.size(), 0);
  for (const int param : ready_order_)
    used[static_cast<size_t>(param)] = 1;
  return used;
}

bool StepProgress::all_have_gradients() const {
  return std::find(states_.begin(), states_.end(), ReadyState::kNone) ==
         states_.end();
}

bool StepProgress::count_reach(int param) {
  const auto i = static_cast<size_t>(param);
  ++reaches_[i];
  return !expected_reaches_.empty() && reaches_[i] >= expected_reaches_[i];
}

void StepProgress::expect_these_reaches() {
  if (expected_reaches_.empty())
    expected_reaches_ = reaches_;
}

std::string StepProgress::names_of(ReadyState state) const {
  constexpr int kShown = 8;
  std::string names;
  int count = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] != state || ++count > kShown)
      continue;
    names += (count == 1 ? "" : ", ") + params_[i].name;
  }
  return count > kShown ? names + ", ..." : names;
}

void StepProgress::throw_if_missing() const {
  const auto missing =
      std::count(states_.begin(), states_.end(), ReadyState::kNone);
  if (missing == 0)
    return;
  throw ConfigError(fmt::format(
      "[data_parallel] {} of {} parameters got no gradient in this step: {}. "
      "Use them in the loss, freeze them before wrapping, or set "
      "missing_gradient = kZero",
      missing,
      states_.size(),
      names_of(ReadyState::kNone)));
}

}  // namespace brigade
