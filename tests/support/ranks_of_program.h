// The ranks of a running `brigade train --nproc N`, seen from outside.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace brigade::testing {

// False if it does not come true within a minute.
bool eventually(const std::function<bool()>& condition);

// A file of /proc/PID; "" if the process is gone.
std::string read_proc(pid_t pid, const std::string& name);

// The process of a rank whose supervisor is that process; -1: it does not run.
pid_t find_rank(pid_t supervisor, int rank);

}  // namespace brigade::testing
