// `brigade train` with its ranks as threads of this process: the same code from
// the config file to the checkpoint, without starting processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "brigade/train/step_requests.h"

namespace brigade::testing {

// Runs to the end, replacing the run that was in logging.run_dir; nothing is
// printed. Collectives' signatures are compared if BRIGADE_CHECK_COLLECTIVES=1.
// Rethrows what the first rank threw that failed. `requests`: what a rank asks
// for before, in and after that step; empty: nothing. `on_step`: whenever the
// watchdog's time begins anew, on the rank's thread.
void train_as_threads(
    const std::filesystem::path& config,
    int ranks,
    const std::vector<std::string>& overrides,
    const std::function<StepRequests(int rank, int64_t step)>& requests = {},
    const std::function<void(int rank, int64_t step)>& on_step = {});

}  // namespace brigade::testing
