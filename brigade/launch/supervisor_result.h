// How ranks under a supervisor ended, and what to say of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brigade {

struct RankFailure {
  int rank = 0;
  int64_t step = -1;   // -1: the rank did not tell
  int signal = 0;      // that killed it; 0: it exited
  int exit_code = 0;   // 128 + signal when killed
  std::string reason;  // the rank's last words; "": none
  std::string note;    // of SupervisorOptions::rank_notes
};

struct SupervisorResult {
  // 0, or the first failure's.
  int exit_code = 0;
  // Ranks that failed by themselves, the cause first; ranks that were ended
  // because of it are not among them.
  std::vector<RankFailure> failures;
  // A signal asked for the end, of the supervisor or of a rank.
  bool was_asked_to_end = false;
  // The lowest and the highest step that a rank reported; -1: none did.
  int64_t first_step = -1;
  int64_t last_step = -1;
  // Output of a run that failed or was ended, and that nobody read in time.
  uint64_t dropped_bytes = 0;
  // The errno with which output_descriptor refused a line; 0: it took all.
  int output_failure = 0;
};

// A rank whose job's time is over ends as if by this signal, with code 160: no
// process is ended by it, since it is the C library's own. srun ends with the
// highest code of the ranks, and those that it kills have 137 or 143.
inline constexpr int kTimeIsOver = 32;

// SIGINT, SIGTERM, SIGHUP or kTimeIsOver.
bool asks_for_end(int number);

// "rank 1 failed at step 37: CommError: ...", "rank 1 (dp 1) was killed by
// SIGKILL (9) at step 37", "rank 1 exited with code 5".
std::string describe(const RankFailure& failure);

// What to print last: failures, with those like the first one left out, and the
// cause at the end. Ends that a signal asked for are none.
std::vector<std::string> describe_failures(const SupervisorResult& result);

}  // namespace brigade
