// Which gradient is in which bucket, and where: decided by a pure function,
// carried out by BucketedGradSync.
//
// PURE: no libtorch, no process, no clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "brigade/base/flat_range.h"
#include "brigade/base/units.h"
#include "brigade/options/choice.h"

namespace brigade {

// What planning needs to know about a parameter.
struct BucketParam {
  std::string name;
  int64_t numel = 0;
  std::string dtype = "Float";     // a bucket holds parameters of one dtype
  int64_t grad_element_bytes = 4;  // of main_grad: 4 for fp32
  // Elements of a row, if most rows of the gradient are zero; else 0.
  int64_t sparse_row_numel = 0;
  bool has_own_bucket = false;
  int unit = 0;   // a bucket holds parameters of one unit
  int group = 0;  // and of one group of ranks that reduce it
};

// The order in which parameters are assigned to buckets.
enum class BucketOrder {
  kRegistration,  // as modules register them; what picotron does
  kReverse,       // about the order in which backward reaches them
  kObserved,      // kReverse in the first step, then the order seen in it
};
// As the config spells them.
template <>
inline constexpr std::array kChoices<BucketOrder>{
    Choice{BucketOrder::kRegistration, "registration"},
    Choice{BucketOrder::kReverse, "reverse"},
    Choice{BucketOrder::kObserved, "observed"}};

// Sizes of buckets.
struct BucketPlanOptions {
  int64_t capacity_bytes = 25 * MiB;
  // A small first bucket starts communication early; no larger than the others.
  int64_t first_bucket_bytes = 1 * MiB;
  // The last bucket has no backward left to overlap with. Towards the end of
  // the order a bucket takes half of the rest, but at least this.
  int64_t last_bucket_bytes = 1 * MiB;
  int64_t alignment_numel = 64;  // of every parameter's offset
  // A bucket's numel is a multiple of this many ranks, so that a reduce-scatter
  // over them divides evenly: the least common multiple of the groups' sizes.
  int ranks = 1;
  // Each rank's part of a bucket is a multiple of so many elements.
  int64_t range_numel = 1;
};

// Parameters and ranks' parts begin where blocks of so many elements do.
void align_to_blocks(BucketPlanOptions& options, int64_t block_numel);

// One bucket: a flat buffer of numel elements, and what is in it.
struct PlannedBucket {
  std::string dtype;
  int64_t grad_element_bytes = 4;
  int64_t numel = 0;  // padding included
  std::vector<RunPart> slots;
  int64_t sparse_row_numel = 0;  // of its only parameter
  int unit = 0;
  int group = 0;
  int64_t bytes() const { return numel * grad_element_bytes; }
  bool operator==(const PlannedBucket&) const = default;
};

// Buckets in launch order: the order in which their last parameter comes.
// Every rank launches them in this order, whatever order they fill in.
struct BucketPlan {
  std::vector<PlannedBucket> buckets;
  bool operator==(const BucketPlan&) const = default;
  // One line per bucket: what --dry-run prints.
  std::string table(std::span<const BucketParam> params) const;
};

// The parameters' indices in the order in which gradients are expected;
// kObserved starts as kReverse.
std::vector<int> initial_order(BucketOrder order, int params);

// Fills buckets greedily in the given order; `order` is a permutation of the
// parameters' indices. A parameter larger than the capacity is a bucket of its
// own, and so is one with sparse rows or has_own_bucket. Where the unit
// changes, a bucket ends. Each group of ranks has buckets of its own.
BucketPlan plan_buckets(
    std::span<const BucketParam> params,
    std::span<const int> order,
    const BucketPlanOptions& options);

}  // namespace brigade
