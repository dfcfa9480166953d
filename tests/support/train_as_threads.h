// `brigade train` with its ranks as threads of this process: the same code from
// the config file to the checkpoint, without starting processes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace brigade::testing {

// Runs to the end, replacing the run that was in logging.run_dir; nothing is
// printed. Collectives' signatures are compared if BRIGADE_CHECK_COLLECTIVES=1.
// Rethrows what the first rank threw that failed.
void train_as_threads(
    const std::filesystem::path& config,
    int ranks,
    const std::vector<std::string>& overrides);

}  // namespace brigade::testing
