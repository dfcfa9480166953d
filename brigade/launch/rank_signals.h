// Signals that ask something of a rank: USR1 to save and go on, TERM, INT and
// HUP to save and stop, QUIT to write what it did last. The handlers only take
// note; the trainer looks between two steps, its watchdog ten times a second. A
// second INT ends the process at once.
#pragma once

#include <signal.h>

#include <cstdint>
#include <map>
#include <optional>

#include "brigade/launch/environment.h"

namespace brigade {

// Keeps USR1 waiting until there are RankSignals: by default it would end a
// program that still loads its libraries. Holds across exec.
void hold_save_requests();

// One at a time in a process. Lets a USR1 in that hold_save_requests() held. A
// signal that was ignored before (nohup) stays ignored; the destructor puts all
// back but QUIT, which does nothing any more.
class RankSignals {
 public:
  RankSignals();
  ~RankSignals();
  RankSignals(const RankSignals&) = delete;
  RankSignals& operator=(const RankSignals&) = delete;

  // Whether USR1 came since the last call.
  bool take_save_request();
  // Whether QUIT came since the last call.
  bool take_recording_request();
  // The first signal that asked for the end; 0: none did.
  int stop_signal() const;

 private:
  std::map<int, struct sigaction> before_;
};

// Under Open MPI and MPICH: asks this rank to end (SIGTERM) when its launcher
// dies, which nothing else would tell it. Our own supervisor and Slurm see to
// that themselves. Call on the main thread.
void end_with_launcher(const LaunchEnvironment& environment);

// What the launcher waits between SIGTERM and SIGKILL.
struct KillGrace {
  double seconds = 0;
  bool can_grow = true;  // by a parameter of the launcher
};

// With Open MPI's mpirun its parameter odls_base_sigkill_timeout, 1 s where it
// is not set; Open MPI 5 and later (measured: 5.0.7, 6.0.0rc2) take no heed of
// it and wait at most half a second. std::nullopt with other launchers. Throws
// ConfigError where that is no number.
std::optional<KillGrace> kill_grace(
    const LaunchEnvironment& environment,
    const GetEnv& getenv);

// When the job's time is over, in seconds of Unix time: SLURM_JOB_END_TIME.
// Throws ConfigError where that is no number.
std::optional<int64_t> job_end_time(const GetEnv& getenv);

}  // namespace brigade
