// What the recordings of all ranks say together: which rank and which operation
// did not arrive.
//
// PURE.
#pragma once

#include <string>
#include <vector>

#include "brigade/flight/recording.h"

namespace brigade {

// An operation that did not come to its end on all ranks that take part.
struct FlightFinding {
  std::string text;          // one sentence, ranks with coordinates
  std::vector<int> waiting;  // global ranks that launched it
  std::vector<int> absent;   // those that they wait for; empty: not known
};

struct FlightAnalysis {
  std::vector<int> without_recording;  // ranks, of all that groups name
  std::vector<FlightFinding> findings;
  // Ranks that others wait for, directly or through others, and that wait for
  // nobody themselves: where the fault is. Ascending.
  std::vector<int> suspects;
};

// Whether one of them is of a failure.
bool tell_failure(const std::vector<FlightRecording>& recordings);

// Recordings of one failure, one per rank at most, in any order. Those that
// were asked for at another time count only where none is of a failure.
FlightAnalysis analyze_flights(const std::vector<FlightRecording>& recordings);

// A text for people: a line per rank, the findings, the suspects.
std::string describe(
    const FlightAnalysis& analysis,
    const std::vector<FlightRecording>& recordings);

// "rank 1 (dp 1) did not arrive at all_reduce #41 ..." or "" if nothing was
// found: what to look at first, in one line.
std::string summarize(const FlightAnalysis& analysis);

}  // namespace brigade
