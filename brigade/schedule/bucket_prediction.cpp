#include "brigade/schedule/bucket_prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "brigade/base/error.h"

namespace brigade {

double AllReduceCost::time_ns(int64_t bytes) const {
  return latency_ns + static_cast<double>(bytes) * ns_per_byte;
}

AllReduceCost fit_all_reduce_cost(std::span<const AllReduceSample> samples) {
  // Minimises the sum of ((a + b x - y) / y)^2: weights w = 1 / y^2.
  double w = 0;
  double wx = 0;
  double wy = 0;
  for (const AllReduceSample& sample : samples) {
    if (sample.bytes <= 0 || !(sample.time_ns > 0)) {
      throw UsageError(fmt::format(
          "[tune-buckets] an all-reduce of {} bytes in {} ns cannot be fitted: "
          "both must be positive",
          sample.bytes,
          sample.time_ns));
    }
    const double weight = 1 / (sample.time_ns * sample.time_ns);
    w += weight;
    wx += weight * static_cast<double>(sample.bytes);
    wy += weight * sample.time_ns;
  }
  // About the means: the sums themselves would cancel.
  double spread = 0;
  double slope = 0;
  double through_origin_x = 0;
  double through_origin = 0;
  for (const AllReduceSample& sample : samples) {
    const double weight = 1 / (sample.time_ns * sample.time_ns);
    const auto x = static_cast<double>(sample.bytes);
    spread += weight * (x - wx / w) * (x - wx / w);
    slope += weight * (x - wx / w) * (sample.time_ns - wy / w);
    through_origin_x += weight * x * x;
    through_origin += weight * x * sample.time_ns;
  }
  if (!std::any_of(samples.begin(), samples.end(), [&](const auto& sample) {
        return sample.bytes != samples.front().bytes;
      })) {
    throw UsageError(
        "[tune-buckets] latency and bandwidth need all-reduces of at least two "
        "sizes");
  }
  AllReduceCost cost;
  cost.ns_per_byte = slope / spread;
  cost.latency_ns = wy / w - cost.ns_per_byte * wx / w;
  // The best fit within the bounds lies on the bound that was crossed.
  if (cost.latency_ns < 0)
    return {0, through_origin / through_origin_x};
  if (cost.ns_per_byte < 0)
    return {wy / w, 0};
  return cost;
}

ExposurePrediction predict_exposure(
    const BucketPlan& plan,
    const BackwardTimeline& timeline,
    const AllReduceCost& cost) {
  ExposurePrediction prediction;
  double launched_ns = 0;
  for (const PlannedBucket& bucket : plan.buckets) {
    for (const RunPart& slot : bucket.slots) {
      const auto param = static_cast<size_t>(slot.param);
      if (param >= timeline.ready_ns.size()) {
        throw UsageError(fmt::format(
            "[tune-buckets] the timeline has {} parameters, but the plan has "
            "parameter {}",
            timeline.ready_ns.size(),
            param));
      }
      // A full bucket waits for those before it in the plan.
      launched_ns = std::max(launched_ns, timeline.ready_ns[param]);
    }
    const double time_ns = cost.time_ns(bucket.bytes());
    prediction.communication_ns += time_ns;
    prediction.end_ns = std::max(prediction.end_ns, launched_ns) + time_ns;
  }
  prediction.exposed_ns = std::max(0.0, prediction.end_ns - timeline.end_ns);
  return prediction;
}

}  // namespace brigade
