// The latest values of a run in Prometheus' text format, for the textfile
// collector of its node exporter.
#pragma once

#include <string>

#include "brigade/metrics/metrics.h"

namespace brigade {

// One gauge per value, labelled run="NAME". PURE.
std::string prometheus_text(
    const StepMetrics& metrics,
    const std::string& run_name);

}  // namespace brigade
