// One page about one or several runs, which opens offline: curves, what a step
// waited for, layout, config and how configs differ, checkpoints.
#pragma once

#include <string>
#include <vector>

#include "brigade/report/run_record.h"

namespace brigade {

// HTML. Everything that it needs is in it.
std::string report_page(const std::vector<RunRecord>& runs);

}  // namespace brigade
