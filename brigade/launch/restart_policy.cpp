#include "brigade/launch/restart_policy.h"

#include <fmt/format.h>

#include <algorithm>

namespace brigade {

RestartVerdict RestartPolicy::judge(const SupervisorResult& end) {
  const SupervisorResult before = std::exchange(last_, end);
  if (end.exit_code == 0 || limits_.max_restarts == 0)
    return {};
  if (end.was_asked_to_end)
    return {.reason = "it was asked to end"};
  const bool was_killed =
      !end.failures.empty() && end.failures.front().signal != 0;
  if (!was_killed &&
      std::ranges::count(limits_.final_exit_codes, end.exit_code) > 0) {
    return {
        .reason = fmt::format("exit code {} would come again", end.exit_code)};
  }
  if (restarts_ == limits_.max_restarts) {
    return {
        .reason = fmt::format(
            "it was restarted {} time{} already",
            restarts_,
            restarts_ == 1 ? "" : "s")};
  }
  const bool made_no_progress = restarts_ > 0 && end.last_step >= 0 &&
                                end.first_step <= before.first_step &&
                                end.last_step <= before.last_step;
  if (made_no_progress) {
    return {
        .reason = fmt::format(
            "it made no progress: the last two attempts began at step {} and "
            "{} and came no further than step {}",
            before.first_step,
            end.first_step,
            before.last_step)};
  }
  ++restarts_;
  return {.restarts = true};
}

}  // namespace brigade
