// The cost of one step's communication, bucket by bucket.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace brigade {

// The life of one bucket in steady-clock nanoseconds (brigade/metrics/clock.h).
struct BucketTiming {
  int index = 0;
  int64_t bytes = 0;        // sparse rows: as a dense all-reduce's
  int64_t ready_ns = 0;     // its last gradient arrived
  int64_t launched_ns = 0;  // it and all before it were ready
  int64_t finished_ns = 0;  // the collective ended
  int64_t wait_begin_ns = 0;
  int64_t wait_end_ns = 0;
  // How long the trainer waited for it: exposed communication.
  int64_t waited_ns() const { return wait_end_ns - wait_begin_ns; }
};

struct SyncReport {
  int64_t backward_begin_ns = 0;  // of the synchronised backward: first hook
  int64_t backward_end_ns = 0;    // when waiting began
  std::vector<int64_t> ready_ns;  // by parameter: its gradient was final
  std::vector<BucketTiming> buckets;

  int64_t bytes() const;
  // Time in which at least one bucket was under way.
  int64_t communication_ns() const;
  // Time the trainer waited: what overlap did not hide.
  int64_t exposed_ns() const;
  int64_t overlapped_ns() const;
  // Bytes that one rank sends per second while communicating, in GB/s, for a
  // ring all-reduce over `ranks`: 2 n (ranks - 1) / ranks. 0 for one rank.
  double bus_bandwidth_gb_s(int ranks) const;
  // One line per bucket, then the totals: --report-overlap.
  std::string table(int ranks) const;
};

}  // namespace brigade
