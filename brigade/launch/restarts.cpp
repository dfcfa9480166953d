#include "brigade/launch/restarts.h"

#include <fmt/format.h>

#include <algorithm>

namespace brigade {

SupervisorResult supervise_with_restarts(
    SupervisorOptions options,
    const RestartOptions& restarts) {
  const auto say = [&](const std::string& line) {
    if (restarts.on_message)
      restarts.on_message(line);
  };
  const auto environment = options.environment;
  RestartPolicy policy(restarts.limits);
  SignalPipe signals = supervisor_signals();
  while (true) {
    options.environment = environment;
    options.environment.emplace_back(
        "BRIGADE_RESTART_COUNT", std::to_string(policy.restarts()));
    SupervisorResult result = supervise(options, signals);
    if (result.dropped_bytes > 0) {
      say(fmt::format(
          "note: {} bytes of the ranks' output were dropped, since nobody "
          "read them",
          result.dropped_bytes));
    }
    const std::string explanation = restarts.explain && !result.failures.empty()
                                        ? restarts.explain(result)
                                        : "";
    if (!explanation.empty())
      say(explanation);
    for (const std::string& line : describe_failures(result))
      say("error: " + line);
    if (std::ranges::any_of(signals.take(), asks_for_end))
      result.was_asked_to_end = true;
    const RestartVerdict verdict = policy.judge(result);
    if (!verdict.restarts) {
      if (!verdict.reason.empty())
        say("error: not restarted: " + verdict.reason);
      return result;
    }
    const std::string place =
        restarts.prepare ? restarts.prepare(result, options) : "";
    say(fmt::format(
        "restart {} of {}{}",
        policy.restarts(),
        restarts.limits.max_restarts,
        place.empty() ? "" : ", " + place));
  }
}

}  // namespace brigade
