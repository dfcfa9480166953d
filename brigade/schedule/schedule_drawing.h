// A schedule as text, for people: `brigade train --print-schedule`.
//
// One line per rank, time from left to right. A computation is written as its
// kind (F forward, B backward or its input half, W weight half), its
// micro-batch and, with several stages per rank, a letter for the stage (a for
// the rank's first); dashes say that it lasts longer, dots that the rank
// waits.
//   rank 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0 -- F4 B1 -- ...
//
// PURE.
#pragma once

#include <string>

#include "brigade/schedule/schedule.h"
#include "brigade/schedule/simulator.h"

namespace brigade {

struct DrawingOptions {
  // Longest line; a longer drawing is cut into blocks one below the other.
  int max_columns = 120;
  // Blocks drawn at most; the rest is left out, and said to be.
  int max_blocks = 4;
};

// The table against a clock on which a forward and each half of a backward
// take one slot, then for each rank its stages, the time it waits and its most
// live activations. Requires that validate_computation() finds nothing.
std::string draw_schedule(
    const Schedule& schedule,
    const DrawingOptions& options = {});

}  // namespace brigade
