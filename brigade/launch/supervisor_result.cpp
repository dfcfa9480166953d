#include "brigade/launch/supervisor_result.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

namespace brigade {
namespace {

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number)
                         : fmt::format("SIG{} ({})", name, number);
}

// A rank that did what the user asked for: of several that got different
// signals (a terminal's and ours) too.
bool ended_as_asked(const SupervisorResult& result, const RankFailure& rank) {
  return result.was_asked_to_end && rank.reason.empty() &&
         asks_for_end(rank.exit_code - 128);
}

}  // namespace

bool asks_for_end(int number) {
  return number == SIGINT || number == SIGTERM || number == SIGHUP ||
         number == kTimeIsOver;
}

std::string describe(const RankFailure& failure) {
  const std::string rank =
      failure.note.empty()
          ? fmt::format("rank {}", failure.rank)
          : fmt::format("rank {} ({})", failure.rank, failure.note);
  const std::string at =
      failure.step < 0 ? "" : fmt::format(" at step {}", failure.step);
  if (failure.signal != 0) {
    const char* hint = failure.signal == SIGKILL
                           ? "; the kernel does that when memory runs out"
                           : "";
    return fmt::format(
        "{} was killed by {}{}{}", rank, signal_name(failure.signal), at, hint);
  }
  if (!failure.reason.empty())
    return fmt::format("{} failed{}: {}", rank, at, failure.reason);
  return fmt::format("{} exited with code {}{}", rank, failure.exit_code, at);
}

std::vector<std::string> describe_failures(const SupervisorResult& result) {
  std::vector<std::string> lines;
  for (size_t i = result.failures.size(); i-- > 0;) {
    const RankFailure& failure = result.failures[i];
    const RankFailure& cause = result.failures.front();
    const bool is_the_same = i > 0 && !failure.reason.empty() &&
                             failure.reason == cause.reason &&
                             failure.step == cause.step;
    if (!is_the_same && !ended_as_asked(result, failure))
      lines.push_back(describe(failure));
  }
  return lines;
}

}  // namespace brigade
