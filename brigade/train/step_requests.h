#pragma once

namespace brigade {

// What ranks ask of the run between two steps: each may ask, all must agree.
struct StepRequests {
  bool save = false;
  bool stop = false;  // saves too
  // The signal that asked for the stop; 0: another reason.
  int stop_signal = 0;
};

}  // namespace brigade
