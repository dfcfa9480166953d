// The processes of one supervised run: its ranks, and the guard.
//
// All are in one process group, which the guard leads. The guard sleeps on a
// pipe whose other end only the supervisor holds; when the supervisor is gone,
// however it died, the pipe closes, and the guard says so, removes the run's
// private files and kills the group (ranks and what they started). Should the
// guard be killed too, the kernel still kills the ranks with the supervisor
// (PR_SET_PDEATHSIG).
//
// fork() and exec(): everything between them is safe after fork() in a process
// with threads.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "brigade/files/descriptor.h"

namespace brigade {

struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};
// Both ends close on exec. Throws StorageError.
Pipe make_pipe();

class ProcessGuard {
 public:
  // If the supervisor dies, a line goes to `error_descriptor`, and `files` and
  // then `folder` are removed.
  ProcessGuard(
      const std::vector<std::filesystem::path>& files,
      const std::filesystem::path& folder,
      int error_descriptor);
  // Kills what is left of the group.
  ~ProcessGuard();
  ProcessGuard(const ProcessGuard&) = delete;
  ProcessGuard& operator=(const ProcessGuard&) = delete;

  pid_t group() const { return pid_; }
  void kill_group();

 private:
  pid_t pid_ = -1;
  Descriptor alive_;  // closed by the supervisor's death
};

// As exec() takes them, while `strings` stays as it is.
std::vector<char*> as_pointers(const std::vector<std::string>& strings);

struct ProcessOptions {
  std::string executable;                // looked up in PATH without a '/'
  std::vector<std::string> command;      // argv
  std::vector<std::string> environment;  // NAME=value, all of it
  bool inherits_input = false;           // else reads from /dev/null
};

struct RankProcess {
  pid_t pid = -1;
  Descriptor output;  // non-blocking read ends
  Descriptor error;
};

// Where memory runs out, the kernel ends a rank before its supervisor, which
// reports it (/proc/PID/oom_score_adj). Throws ConfigError when the program
// cannot be started.
RankProcess start_rank(
    const ProcessOptions& options,
    const ProcessGuard& guard);

// Whether a process catches or ignores a signal, which then does not end it
// (/proc/PID/status). True where that cannot be read.
bool handles_signal(pid_t process, int number);

}  // namespace brigade
