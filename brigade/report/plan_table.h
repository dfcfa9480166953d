// A plan in words: tables for a terminal.
//
// PURE.
#pragma once

#include <string>
#include <vector>

#include "brigade/planner/search.h"

namespace brigade::planner {

// One line per layout: rank, layout, step time, tokens/s per device, MFU,
// bubble, exposed communication by axis, memory of the largest rank. A layout
// that `train` lacks a key for is marked with "*".
std::string layout_table(const std::vector<StepEstimate>& layouts, size_t most);

// Where a step's time goes, one line per part.
std::string time_table(const StepEstimate& estimate);

// Memory of each rank of the pipeline by part, in GiB.
std::string memory_table(
    const StepEstimate& estimate,
    const machine::Device& device);

// "1.25 s", "340 ms".
std::string readable_seconds(double seconds);

}  // namespace brigade::planner
