// One page about one or several runs, which opens offline: curves, what a
// step's time goes to, buckets, the schedule as it ran and as planned, restarts
// and other events, layout, config and how configs differ, environment.
#pragma once

#include <string>
#include <vector>

#include "brigade/report/run_record.h"

namespace brigade {

// HTML. Everything that it needs is in it. `refresh_ms` above 0: it asks its
// server for report_data() again and again.
std::string report_page(const std::vector<RunRecord>& runs, int refresh_ms = 0);

// What the page shows, as JSON.
std::string report_data(const std::vector<RunRecord>& runs);

}  // namespace brigade
