// What a rank did and when, as a Chrome trace, which https://ui.perfetto.dev
// and chrome://tracing open: a process is a rank, with one lane for computation
// and what waits for communication, and one for the communication itself.
//
// The format: Google's "Trace Event Format", complete events ("ph": "X") in
// microseconds, which must nest within a lane.
//
// No libtorch, no clock.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "brigade/metrics/sync_report.h"

namespace brigade {

enum class TraceLane { kCompute = 1, kCommunication = 2 };

// Steady-clock nanoseconds: ranks of one machine share a clock.
struct TraceSpan {
  TraceLane lane = TraceLane::kCompute;
  std::string name;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  nlohmann::ordered_json args;  // shown when the span is clicked; may be null
};

class Trace {
 public:
  explicit Trace(int rank) : rank_(rank) {}

  // Spans of a lane must nest: one inside the other, or disjoint.
  void add(TraceSpan span) { spans_.push_back(std::move(span)); }

  // A step's buckets on the communication lane, the waits for them on the
  // compute lane. Buckets under way at once would not nest, so a bucket's span
  // begins when it was launched or when the one that finished before it did,
  // whichever is later: spans do not overlap and cover just the time in which
  // communication was under way. Launch and all other times are in its args.
  void add(const SyncReport& report, int stage);

  bool empty() const { return spans_.empty(); }
  const std::vector<TraceSpan>& spans() const { return spans_; }
  // The file's text.
  std::string to_json() const;

 private:
  int rank_;
  std::vector<TraceSpan> spans_;
};

// A bucket's bytes and times, in ms since its synchronised backward began.
nlohmann::ordered_json to_json(
    const BucketTiming& bucket,
    const SyncReport& report);

}  // namespace brigade
