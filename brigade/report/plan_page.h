// A plan as one HTML page that opens offline: the quickest layouts with bars of
// memory and time, and the simulated timeline of the first. No script, no
// external files; follows the reader's light or dark theme.
//
// PURE.
#pragma once

#include <string>
#include <vector>

#include "brigade/planner/search.h"

namespace brigade::planner {

struct PlanPage {
  std::string title;                        // "llama-3-8b on 512 x h100"
  const machine::Device* device = nullptr;  // not owned
  std::vector<StepEstimate> layouts;        // quickest first; at least one
  // The timeline of the first layout, or of the part of its micro-batches that
  // is drawn.
  Simulation timeline;
  int64_t drawn_micro_batches = 0;
  int64_t micro_batches = 0;  // of a step
};

std::string plan_page(const PlanPage& page);

}  // namespace brigade::planner
