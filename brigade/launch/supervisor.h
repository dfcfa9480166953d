// Starts N ranks of a program on this machine and stays with them to the end:
//   * their rendezvous is a file in a private folder, so no port is opened;
//   * SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2 and SIGQUIT are passed on;
//   * their output is merged by line, and never waited for: ranks whose output
//     nobody reads wait, the supervisor goes on seeing failures and signals;
//   * when one fails, the others are ended within 2 s; those that write what
//     they did last on SIGQUIT (rank_report.h) are asked for it first, and
//     killed once all have;
//   * a rank that is past its step's deadline and does not end itself, because
//     it is stopped or blocked, has failed, and is ended within 2 s;
//   * when the supervisor itself is killed, they are too (rank_process.h).
//
// The ranks find RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE (as under
// torchrun) and BRIGADE_STORE_FILE in their environment, which
// read_environment() understands.
//
// No libtorch. One supervisor at a time in a process.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/launch/environment.h"
#include "brigade/launch/signal_pipe.h"
#include "brigade/launch/supervisor_result.h"

namespace brigade {

struct SupervisorOptions {
  int nproc = 1;
  std::vector<std::string> command;  // argv of every rank
  std::string executable;            // "": command[0], looked up in PATH
  // Set for every rank, over what the supervisor's own environment holds.
  std::vector<std::pair<std::string, std::string>> environment;
  // CPU threads of a rank; absent: the CPUs shared out, unless the environment
  // says otherwise.
  std::optional<int> threads_per_rank;
  // "[rank 1] " before each line, except for `unprefixed_rank`'s.
  bool prefixes_lines = true;
  std::optional<int> unprefixed_rank;
  // What messages add to a rank's number, by rank: "dp 1, tp 0". Empty:
  // nothing.
  std::vector<std::string> rank_notes;
  // The program writes recordings on SIGQUIT, which a rank that still starts is
  // spared. Others are sent it in any case.
  bool records_on_quit = false;
  // After the first failure: how long until SIGKILL. At most 2 s in all.
  std::chrono::milliseconds kill_after{1500};
  // Where the ranks' output goes.
  int output_descriptor = 1;
  int error_descriptor = 2;
};

// Returns when every rank has ended. Throws ConfigError when the program cannot
// be started, StorageError when the private folder cannot be made.
SupervisorResult supervise(const SupervisorOptions& options);
// The same with a pipe of supervisor_signals() that outlives it, so that no
// signal between two attempts is lost.
SignalPipe supervisor_signals();
SupervisorResult supervise(
    const SupervisorOptions& options,
    SignalPipe& signals);

}  // namespace brigade
