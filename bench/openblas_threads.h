// As many threads for OpenBLAS as for the rest.
#pragma once

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "brigade/base/error.h"

namespace brigade::bench {

// OpenBLAS, behind PyTorch's float32 products, takes its number of threads from
// the environment, once, when it is loaded: starts this program again with
// that.
inline void give_openblas_as_many_threads(char** argv) {
  constexpr const char* kVariable = "OPENBLAS_NUM_THREADS";
  const std::string threads = std::to_string(at::get_num_threads());
  const char* given = std::getenv(kVariable);
  if (given != nullptr && threads == given)
    return;
  ::setenv(kVariable, threads.c_str(), /*overwrite=*/1);
  ::execv("/proc/self/exe", argv);
  throw ConfigError(
      fmt::format("[bench] cannot start again: {}", std::strerror(errno)));
}

}  // namespace brigade::bench
