// What this machine's processes reach at the work that the planner predicts:
// products by size, attention, passes over memory, all-reduces.
//
// Collective: all ranks of the run call it together and do the same work at the
// same time, as they do in training; each reports what it reached itself.
#pragma once

#include <cstdint>

#include "brigade/calibrate/calibration.h"
#include "brigade/launch/environment.h"

namespace brigade {

struct MeasureOptions {
  // Each piece of work is repeated for that long, and eight times at least; the
  // median counts.
  double seconds_each = 0.4;
  int64_t tokens = 1024;           // rows of products and elementwise ops
  int64_t largest_product = 1024;  // the smallest is 32; powers of two
  int64_t layers_bytes = int64_t{1} << 26;  // of the layers that are measured
  int64_t optimizer_numel = int64_t{1} << 22;
  int64_t largest_message_bytes = int64_t{1} << 24;
};

// Throws CommError if the ranks do not connect.
machine::Measurements measure_machine(
    const LaunchEnvironment& environment,
    const MeasureOptions& options = {});

}  // namespace brigade
