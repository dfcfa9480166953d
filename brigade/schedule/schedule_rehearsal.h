// The ranks of a schedule, run against each other without tensors or time:
// posting never blocks, computation waits for its input and for old sends, and
// a pair of ranks transfers in the order of posting (schedule.h).
//
// PURE.
#pragma once

#include <string>
#include <vector>

#include "brigade/schedule/schedule.h"

namespace brigade {

// Adds what keeps a rank from finishing: a wait that never ends, two ends of a
// transfer that do not match, a send before its tensor exists. Requires that
// validate_computation() finds nothing.
void rehearse(const Schedule& schedule, std::vector<std::string>& problems);

}  // namespace brigade
