// Whether ranks that failed are started again: a pure decision.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brigade {

struct RestartLimits {
  int max_restarts = 0;
  // Exit codes that another attempt would end with too (a wrong config), or
  // that say that the end was asked for.
  std::vector<int> final_exit_codes;
};

// How one attempt ended.
struct AttemptEnd {
  int exit_code = 0;        // of the first failure
  bool was_killed = false;  // by a signal, which is never a final exit code
  bool was_asked_to_end = false;
  // The first and the last step that a rank reported; -1: none did.
  int64_t first_step = -1;
  int64_t last_step = -1;
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

  RestartVerdict judge(const AttemptEnd& end);
  int restarts() const { return restarts_; }  // granted so far

 private:
  RestartLimits limits_;
  int restarts_ = 0;
  AttemptEnd last_;
};

}  // namespace brigade
