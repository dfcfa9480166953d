// Whether ranks that failed are started again: a pure decision.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "brigade/launch/supervisor.h"

namespace brigade {

struct RestartLimits {
  int max_restarts = 0;
  // Exit codes that another attempt would end with too (a wrong config), or
  // that say that the end was asked for. Not of ranks that a signal killed.
  std::vector<int> final_exit_codes;
};

struct RestartVerdict {
  bool restarts = false;
  std::string reason;  // why not, as a clause: "it was restarted 3 times"
};

// Ask once per attempt, in order. An attempt made no progress when it began
// where the one before began, or earlier, and came no further: the third one
// would fail in the same way. Attempts that report no steps only count.
class RestartPolicy {
 public:
  explicit RestartPolicy(RestartLimits limits) : limits_(std::move(limits)) {}

  RestartVerdict judge(const SupervisorResult& end);
  int restarts() const { return restarts_; }  // granted so far

 private:
  RestartLimits limits_;
  int restarts_ = 0;
  SupervisorResult last_;
};

}  // namespace brigade
