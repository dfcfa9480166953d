// A benchmark's ranks, as processes.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/launch/supervisor.h"

namespace brigade::bench {

// Runs ranks until all have ended. Throws Error with what ended the first that
// failed; `name` says what ran. Their output goes to a new file `log`, unless
// it is empty.
inline void run_ranks(
    SupervisorOptions options,
    const std::string& name,
    const std::filesystem::path& log = {}) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(nullptr, std::fclose);
  if (!log.empty()) {
    file.reset(std::fopen(log.c_str(), "w"));
    if (file == nullptr)
      throw StorageError("[bench] cannot write " + log.string());
    options.output_descriptor = ::fileno(file.get());
  }
  const SupervisorResult result = supervise(options);
  if (result.exit_code == 0)
    return;
  // Ranks that a signal to this process ended have not failed.
  const std::vector<std::string> failures = describe_failures(result);
  throw Error(
      ExitCode::kUnexpected,
      fmt::format(
          "[bench] {}: {}",
          name,
          failures.empty() ? "a signal asked for its end"
                           : fmt::format("{}", fmt::join(failures, "; "))));
}

}  // namespace brigade::bench
