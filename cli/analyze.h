// What a failed run's recordings say, for `brigade analyze` and for the
// supervisor of a run.
#pragma once

#include <filesystem>
#include <string>

namespace brigade::cli {

// One line for the terminal: which rank did not arrive where, and the command
// that says more. "" where the folder holds no recordings, or they say nothing.
std::string explain_failure(const std::filesystem::path& flight);

}  // namespace brigade::cli
