// How many CPU threads each rank of a machine gets. OpenMP and OpenBLAS read
// their number when they are loaded, before main(), so it must be in the
// environment when the process starts: the supervisor puts it there, and a
// rank started by another launcher starts itself once more with it.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "brigade/launch/environment.h"

namespace brigade {

// CPUs that this process may use: its affinity, and its cgroup's quota.
int available_cpus();

// Threads for one of local_world_size ranks of this machine, at least 1. A
// launcher may already have bound this rank to a part of the CPUs (mpirun and
// srun do), which shows in its affinity being narrower than its parent's.
int cpu_share(int local_world_size);

// The variables that give each library its number of threads:
// `wanted_threads` if given (the config's environment.OMP_NUM_THREADS wins over
// the process's environment, as in picotron), else `share` for those that
// neither the user nor the launcher has set.
std::vector<std::pair<std::string, std::string>> thread_variables(
    const GetEnv& getenv,
    int share,
    std::optional<int> wanted_threads);

// Replaces this process by itself with thread_variables() and
// huge_page_variable() set, unless they are set, or that was done before; all
// libraries coming to the same number of threads by themselves counts as set.
// `arguments` are main's. Returns when there is nothing to do.
// Throws ConfigError if it cannot.
void share_out_cpu_threads(
    const LaunchEnvironment& environment,
    const GetEnv& getenv,
    std::optional<int> wanted_threads,
    const std::vector<std::string>& arguments);

}  // namespace brigade
