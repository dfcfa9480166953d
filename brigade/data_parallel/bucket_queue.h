// The buckets of a step, launched in plan order whatever order they fill in, so
// that all ranks launch the same collectives in the same order.
//
// mark_ready() runs on the thread of backward, and waits there for a bucket
// that is divided before backward ends; is_reduced() and settle() run there too,
// everything else on the trainer's thread, or on the one that ends backward.
#pragma once

#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/data_parallel/bucket.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/wrapped_params.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/param/param_memory.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

class BucketQueue {
 public:
  // What reduces the buckets.
  struct Reducer {
    BucketHook hook;
    std::vector<bool> are_averaged;  // by parameter: see BucketView
  };

  // `memory` was laid out by `plan` and outlives this object.
  BucketQueue(
      const BucketPlan& plan,
      const std::vector<Param>& params,
      ParamMemory& memory,
      const Reducer& reducer);

  // A parameter's gradient is final: launches its bucket and those behind it
  // that are full, once all before it were launched.
  void mark_ready(int param);
  // Launches all that were not launched yet as they are: on a rank that shadows
  // the others, or whose micro-batch is over.
  void launch_rest();
  // Waits for everything that was launched, and hands it to
  // ParamMemory::take_reduced(); one timing per bucket. Throws
  // CommError naming the bucket.
  std::vector<BucketTiming> wait();
  // See Bucket::note_times().
  void note_times(std::vector<BucketTiming>& timings) const;
  // Waits for what is under way, whatever becomes of it.
  void abandon();
  // Whether a bucket was launched and its reduction is over.
  bool is_reduced(size_t bucket);
  // Whether kWindow buckets behind it were launched, which is at the same place
  // of backward on all ranks.
  bool is_behind(size_t bucket) const {
    return bucket + kWindow < next_to_launch_;
  }
  // Waits for one bucket, as wait() does for all.
  void settle(size_t bucket);
  // For the next step. Precondition: nothing is under way.
  void reset();

 private:
  // Where gradients are sharded: so many buckets are under way at once, and the
  // memory of those before them is free again.
  static constexpr size_t kWindow = 2;

  Communicator& group_of(size_t bucket) const {
    return *memory_->segments()[bucket].group.ranks;
  }

  ParamMemory* memory_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;  // by parameter
  size_t next_to_launch_ = 0;
  BucketHook hook_;
};

}  // namespace brigade
