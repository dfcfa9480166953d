// supervise(), again after a failure: all ranks are ended and started again, as
// a program resumes from its newest checkpoint.
#pragma once

#include <functional>
#include <string>

#include "brigade/launch/restart_policy.h"
#include "brigade/launch/supervisor.h"

namespace brigade {

struct RestartOptions {
  RestartLimits limits;
  // Called before each restart with how the last attempt ended; may change what
  // the next one runs. Returns where it goes on: "from step 40" or "". Empty:
  // the same command again.
  std::function<std::string(const SupervisorResult&, SupervisorOptions& next)>
      prepare;
  // Called after a failed attempt: what else there is to say about it, a line
  // to print, or "". Empty: nothing.
  std::function<std::string(const SupervisorResult&)> explain;
  // The failures of an attempt, and what follows from them: lines to print.
  std::function<void(const std::string& line)> on_message;
};

// The ranks find the number of restarts in BRIGADE_RESTART_COUNT. Returns the
// last attempt's result. Throws what supervise() throws.
SupervisorResult supervise_with_restarts(
    SupervisorOptions options,
    const RestartOptions& restarts);

}  // namespace brigade
