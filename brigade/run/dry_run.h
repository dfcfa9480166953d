// What of a run can be known before it has ranks.
#pragma once

#include <string>

#include "brigade/config/train_config.h"
#include "brigade/data/token_range.h"

namespace brigade {

// Everything that can be checked without starting ranks, checked, and printed:
// the layout, the stages, parameters per rank, buckets, files. Throws what
// run_training() would throw for the same reason.
std::string describe_dry_run(
    const TrainConfig& config,
    const TokenScanOptions& scan = {});

}  // namespace brigade
