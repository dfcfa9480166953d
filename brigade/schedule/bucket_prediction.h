// Predicts how much communication a bucket plan leaves exposed, from the cost
// of an all-reduce and the times at which backward has each gradient ready.
//
// The model: buckets are launched in plan order as SyncReport sees them, and
// the network carries out one at a time, each in latency + bytes / bandwidth.
// All ranks are equal. It ignores that communication slows computation on the
// same cores, so measure its best candidates before choosing one.
//
// PURE: no libtorch, no process, no clock.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "brigade/schedule/bucket_plan.h"

namespace brigade {

struct AllReduceSample {
  int64_t bytes = 0;
  double time_ns = 0;
};

// time_ns(bytes) = latency_ns + bytes * ns_per_byte, both at least 0.
struct AllReduceCost {
  double latency_ns = 0;
  double ns_per_byte = 0;
  double time_ns(int64_t bytes) const;
};

// Least squares of the relative errors, so that small sizes, which show the
// latency, count as much as large ones. Throws UsageError unless there are
// two different sizes and all sizes and times are positive.
AllReduceCost fit_all_reduce_cost(std::span<const AllReduceSample> samples);

// One backward of the step's last micro-batch, in ns since it began.
struct BackwardTimeline {
  std::vector<double> ready_ns;  // by parameter
  double end_ns = 0;
};

struct ExposurePrediction {
  double communication_ns = 0;  // sum over the buckets
  double end_ns = 0;            // of the last bucket
  double exposed_ns = 0;        // how long after backward that is
};

// Throws UsageError when the timeline lacks a parameter of the plan.
ExposurePrediction predict_exposure(
    const BucketPlan& plan,
    const BackwardTimeline& timeline,
    const AllReduceCost& cost);

}  // namespace brigade
