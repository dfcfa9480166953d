// Every layout that fits, quickest first.
//
// PURE.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "brigade/planner/step_estimate.h"

namespace brigade::planner {

struct SearchOptions {
  int devices = 1;
  // The part of the device's memory that a plan may fill.
  double memory_part = 0.95;
  std::vector<int> zero_stages = {0, 1, 2, 3};
  std::vector<Recompute> recompute = {
      Recompute::kNone,
      Recompute::kSelective,
      Recompute::kFull};
  int64_t most_micro_batch = 64;  // sequences; powers of two up to here
  int most_virtual_stages = 8;
};

struct SearchResult {
  std::vector<StepEstimate> fitting;  // quickest first
  int64_t possible = 0;               // layouts that can train
  int64_t too_large = 0;              // those that need more memory
  // Where nothing fits: the layout that needs least, and its largest rank.
  Layout least;
  MemoryParts least_memory;
};

// Layouts that train would refuse are never looked at (validate_layout()).
// Tensor parallel stays within a node: across nodes it is never quicker.
SearchResult search(StepEstimator& estimator, const SearchOptions& options);

// Whether a rank's memory is within the part of the device's that a plan may
// fill.
bool fits(
    const std::vector<MemoryParts>& ranks,
    const machine::Device& device,
    double memory_part);

// Why `other` is slower than `best`: the parts of the step that grew most, in
// seconds, and those that shrank: "tp +0.412 s, bubble -0.031 s".
std::string why_slower(const StepEstimate& best, const StepEstimate& other);

// What would make a model fit that fits nowhere: the least number of devices
// found by doubling, and the memory a device would need as it is.
struct LeastThatFits {
  int devices = 0;        // 0: none up to 64 times as many
  double bytes_each = 0;  // of `least` on the given number of devices
};
LeastThatFits least_that_fits(
    const Training& training,
    const SearchOptions& options,
    const SearchResult& nothing);

}  // namespace brigade::planner
