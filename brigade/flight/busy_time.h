// How long a group's operations were under way.
//
// PURE.
#pragma once

#include <cstdint>
#include <string>

#include "brigade/flight/recording.h"

namespace brigade {

// Milliseconds, of the recorded operations of group `group` that were launched
// at `since_ns` (steady clock) or later and have finished.
double busy_ms(
    const FlightRecording& recording,
    const std::string& group,
    int64_t since_ns);

}  // namespace brigade
