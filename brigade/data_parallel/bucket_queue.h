// The buckets of a step: flat gradient buffers, each reduced by one collective,
// launched in plan order whatever order they fill in, so that all ranks launch
// the same collectives in the same order.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/device_stream.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/data_parallel/grad_sync_options.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/param/param_memory.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

// See Bucket for the transitions.
enum class BucketState { kFilling, kFull, kReducing, kReduced };

// A Bucket is one flat gradient buffer reduced by one collective.
//   kFilling --last mark_ready()--> kFull --launch()--> kReducing
//     --wait() or abandon()--> kReduced --reset()--> kFilling
// Used by one thread at a time: backward's (for parameters on a GPU: autograd's
// thread for that device) or, between backwards and at the step's end, the
// trainer's.
class Bucket {
 public:
  // `view` holds the flat, zeroed main_grad and the parameters' names.
  explicit Bucket(BucketView view);

  // One more parameter of this bucket is ready; the last one makes it full.
  void mark_ready();
  // Precondition: it is full, and all buckets before it in plan order were
  // launched.
  void launch(const BucketHook& hook, Communicator& communicator);
  // Launches whatever it holds, on a rank that shadows the others or at the end
  // of a micro-batch.
  void launch_as_is(const BucketHook& hook, Communicator& communicator);
  // Blocks until main_grad holds the sum. Throws CommError naming the bucket.
  void wait();
  // Whether wait() would not block.
  bool is_reduced();
  // Waits for the reduction under way and ignores its errors: the step is given
  // up.
  void abandon();
  // Precondition: not reducing.
  void reset();

  BucketState state() const { return state_; }
  // On a device with streams these are the host's times of launch and wait,
  // until note_times().
  const BucketTiming& timing() const { return timing_; }
  // On a device with streams: writes the device's own times of the last step,
  // each 0 until the device has reached it.
  void note_times(BucketTiming& timing) const;

 private:
  std::string describe() const;

  BucketView view_;  // hooks may change it
  size_t params_;
  int64_t bytes_;
  BucketState state_ = BucketState::kFilling;
  size_t pending_;
  StreamTrail writers_;  // of main_grad, since the last launch
  WorkPtr work_;
  BucketTiming timing_;
  // The times of the last step, on a device with streams.
  struct DeviceTimes {
    StreamMark ready;
    StreamMark wait_begin;
    StreamMark wait_end;
    WorkPtr work;
  };
  DeviceTimes device_times_;
};

// The buckets of a step, in plan order.
//
// Used by one thread at a time, as a Bucket. mark_ready() runs on backward's
// thread, and on the trainer's for gradients that were marked by hand
// (GradSync::mark_ready()) or are not ready before GradSync::finish().
// If gradients are divided (ZeRO-2, ZeRO-3), it waits for the bucket kWindow
// before.
class BucketQueue {
 public:
  // `memory` was laid out by `plan` and outlives this object.
  BucketQueue(
      const BucketPlan& plan,
      ParamMemory& memory,
      const GradSyncOptions& options);

  // A parameter's gradient is final: launches its bucket and the full ones
  // behind it, once all before it were launched.
  void mark_ready(int param);
  // Launches all buckets that were not launched yet, as they are: on a rank
  // that shadows the others, or at the end of a micro-batch.
  void launch_rest();
  // Waits for everything that was launched, and hands it to
  // ParamMemory::take_reduced(); one timing per bucket. Throws
  // CommError naming the bucket.
  std::vector<BucketTiming> wait();
  // See Bucket::note_times().
  void note_times(std::vector<BucketTiming>& timings) const;
  // Waits for the reductions under way and ignores their errors.
  void abandon();
  // Whether a bucket was launched and its reduction is over.
  bool is_reduced(size_t bucket);
  // Whether kWindow buckets behind it were launched, which happens at the same
  // place of backward on all ranks.
  bool is_behind(size_t bucket) const {
    return bucket + kWindow < next_to_launch_;
  }
  // Waits for one bucket as wait() does for all.
  void settle(size_t bucket);
  // Prepares for the next step. Precondition: no reduction is under way.
  void reset();

 private:
  // The number of buckets that are under way at once if gradients are divided;
  // the memory of those before them is free again.
  static constexpr size_t kWindow = 2;

  Communicator& group_of(size_t bucket) const {
    return *memory_->segments()[bucket].first_param->group;
  }

  ParamMemory* memory_;
  std::vector<Bucket> buckets_;
  size_t next_to_launch_ = 0;
  BucketHook hook_;
};

}  // namespace brigade
