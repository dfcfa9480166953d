#include "brigade/launch/cpu_share.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "brigade/base/error.h"
#include "brigade/launch/huge_pages.h"
#include "brigade/launch/rank_process.h"

namespace brigade {

namespace {

// CPUs in the affinity of a process (0: this one); 0 if it cannot be read.
int affinity_count(pid_t pid) {
  // Machines may have more CPUs than a cpu_set_t holds.
  for (int capacity = CPU_SETSIZE; capacity <= (1 << 20); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(capacity));
    const size_t size_bytes = CPU_ALLOC_SIZE(static_cast<size_t>(capacity));
    const int result = ::sched_getaffinity(pid, size_bytes, set);
    const int error = errno;
    const int count = result == 0 ? CPU_COUNT_S(size_bytes, set) : 0;
    CPU_FREE(set);
    if (result == 0 || error != EINVAL)
      return count;
  }
  return 0;
}

// The cgroup's quota in CPUs, rounded down, at least 1; absent: no limit.
std::optional<int> quota_cpus() {
  double quota_us = 0;
  double period_us = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file) {
    if (!(file >> quota_us >> period_us))
      return std::nullopt;  // "max"
  } else {
    std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    if (!(quota_file >> quota_us) || !(period_file >> period_us))
      return std::nullopt;
  }
  if (quota_us <= 0 || period_us <= 0)
    return std::nullopt;
  return std::max(1, static_cast<int>(std::floor(quota_us / period_us)));
}

int limited(int cpus) {
  return std::max(1, std::min(cpus, quota_cpus().value_or(cpus)));
}

}  // namespace

int available_cpus() {
  return limited(affinity_count(0));
}

int cpu_share(int local_world_size) {
  const int own = available_cpus();
  const int shared = limited(std::max(own, affinity_count(::getppid())));
  return std::max(1, std::min(own, shared / std::max(1, local_world_size)));
}

std::vector<std::pair<std::string, std::string>> thread_variables(
    const GetEnv& getenv,
    int share,
    std::optional<int> wanted_threads) {
  if (wanted_threads) {
    const std::string threads = std::to_string(*wanted_threads);
    return {{"OMP_NUM_THREADS", threads}, {"OPENBLAS_NUM_THREADS", threads}};
  }
  std::vector<std::pair<std::string, std::string>> variables;
  const auto omp = getenv("OMP_NUM_THREADS");
  if (!omp)
    variables.emplace_back("OMP_NUM_THREADS", std::to_string(share));
  // OpenBLAS follows OMP_NUM_THREADS only where it was built to.
  if (!getenv("OPENBLAS_NUM_THREADS"))
    variables.emplace_back(
        "OPENBLAS_NUM_THREADS", omp.value_or(std::to_string(share)));
  return variables;
}

void share_out_cpu_threads(
    const LaunchEnvironment& environment,
    const GetEnv& getenv,
    std::optional<int> wanted_threads,
    const std::vector<std::string>& arguments) {
  constexpr const char* kGuard = "BRIGADE_THREADS_SHARED_OUT";
  const int share = cpu_share(environment.local_world_size);
  auto variables = thread_variables(getenv, share, wanted_threads);
  const auto online = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (!wanted_threads && share == online && !getenv("OMP_NUM_THREADS"))
    variables.clear();  // what the libraries come to by themselves
  if (auto variable = huge_page_variable(getenv))
    variables.push_back(std::move(*variable));
  const bool is_set = std::ranges::all_of(variables, [&](const auto& variable) {
    return getenv(variable.first) == variable.second;
  });
  if (is_set || getenv(kGuard))
    return;
  for (const auto& [name, value] : variables)
    ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv(kGuard, "1", 1);
  ::execv("/proc/self/exe", as_pointers(arguments).data());
  throw ConfigError(fmt::format(
      "[launch] cannot start again with {} CPU threads: {}; set "
      "OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and "
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 yourself",
      wanted_threads.value_or(share),
      std::strerror(errno)));
}

}  // namespace brigade
