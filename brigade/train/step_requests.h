#pragma once

namespace brigade {

// What ranks ask of the run between two steps: each may ask, all must agree.
struct StepRequests {
  bool save = false;
  bool stop = false;  // saves too
};

}  // namespace brigade
