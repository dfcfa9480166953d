// Finds the bucket capacity that leaves the least communication exposed on the
// ranks at hand: measures what an all-reduce costs and when backward has each
// gradient ready, plans every candidate as training does and predicts it
// (schedule/bucket_prediction.h), and runs the best few to see.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "brigade/config/train_config.h"
#include "brigade/launch/environment.h"
#include "brigade/schedule/bucket_prediction.h"

namespace brigade {

struct BucketTunerOptions {
  int steps = 10;    // measured of each capacity that is run
  int verified = 3;  // how many of the best predictions are run
};

struct TunedCapacity {
  int64_t capacity_bytes = 0;
  bool is_configured = false;  // the config's own
  int buckets = 0;             // most of any rank
  // Longest of any rank.
  double predicted_exposed_ms = 0;
  // Medians over steps; absent: not run. Exposed as the rank sees it that came
  // last in its group, on which no other's delay counts; the step of the
  // slowest rank.
  std::optional<double> exposed_ms;
  std::optional<double> step_ms;
};

struct BucketTuning {
  // The size of ProcessMesh::replicas().
  int ranks = 1;
  std::vector<AllReduceSample> samples;
  AllReduceCost cost;
  double backward_ms = 0;  // from its first gradient to its last
  // As rank_predictions() leaves them. The config's own and the best few were
  // run.
  std::vector<TunedCapacity> capacities;
  size_t fastest = 0;  // index of the one whose steps were shortest
  std::string table() const;
};

// What cannot be tuned: a ConfigError for one rank of dp x cp or for
// grad_sync = per_param; else what opening the data finds.
void check_tunable(const TrainConfig& config);

// Collective: every rank of the run calls it with the same config. Trains a few
// steps of each candidate from the config's initial weights; writes no file.
BucketTuning tune_buckets(
    const TrainConfig& config,
    const LaunchEnvironment& environment,
    const BucketTunerOptions& options = {});

// The configured capacity, then the powers of two from 256 KiB to the first
// that holds all `gradient_bytes`. PURE.
std::vector<int64_t> candidate_capacities(
    int64_t configured_bytes,
    int64_t gradient_bytes);

// Least exposed first; of those that differ by less than `alike_ms` the one
// with the larger buckets, since every launch costs more than is modelled.
// PURE.
void rank_predictions(std::vector<TunedCapacity>& capacities, double alike_ms);

// The JSON text with distributed.bucket_cap_mb set, other keys in their order.
std::string with_bucket_capacity(
    const std::string& config_text,
    int64_t capacity_bytes);

}  // namespace brigade
