// The ranks of a running `brigade train --nproc N`, seen from outside.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace brigade::testing {

// False if it does not come true within ten minutes.
bool eventually(const std::function<bool()>& condition);

// A file of /proc/PID; "" if the process is gone.
std::string read_proc(pid_t pid, const std::string& name);

// The process of a rank whose supervisor is that process; -1: it does not run.
pid_t find_rank(pid_t supervisor, int rank);

// To one process. Throws std::invalid_argument when there is none (-1, what
// find_rank() may return, would stand for every process of the machine), and
// std::system_error when it cannot be sent. A process that has ended gets none.
void send_signal(pid_t pid, int number);

}  // namespace brigade::testing
