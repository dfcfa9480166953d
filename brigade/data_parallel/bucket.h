// A Bucket is one flat gradient buffer reduced by one collective.
//   kFilling --last mark_ready()--> kFull --launch()--> kReducing
//     --wait() or abandon()--> kReduced --reset()--> kFilling
// mark_ready(), launch() and is_reduced() run on the thread of backward (of a
// GPU's parameters: autograd's for that device), which BucketQueue has wait()
// too where it steps in backward, divides gradients or is followed
// (BucketedGradSync::follow()); everything else on the trainer's.
#pragma once

#include <torch/types.h>

#include <string>
#include <vector>

#include "brigade/comm/communicator.h"
#include "brigade/comm/device_stream.h"
#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/metrics/sync_report.h"
#include "brigade/schedule/bucket_plan.h"

namespace brigade {

// See Bucket for the transitions.
enum class BucketState { kFilling, kFull, kReducing, kReduced };

class Bucket {
 public:
  // `view` holds the flat, zeroed main_grad and the parameters' names.
  Bucket(PlannedBucket plan, BucketView view);

  // One more parameter of this bucket is ready; the last one makes it full.
  void mark_ready();
  // Precondition: full, and all before it in plan order were launched.
  void launch(const BucketHook& hook, Communicator& communicator);
  // Launches whatever it holds, for a rank that shadows the others.
  void launch_as_is(const BucketHook& hook, Communicator& communicator);
  // Blocks until main_grad holds the sum. Throws CommError naming the bucket.
  void wait();
  // Whether wait() would not block.
  bool is_reduced();
  // Waits for what is under way, whatever becomes of it: its step is given up.
  void abandon();
  // Precondition: not reducing.
  void reset();

  BucketState state() const { return state_; }
  const PlannedBucket& plan() const { return plan_; }
  const torch::Tensor& main_grad() const { return view_.main_grad; }
  // On a device with streams: as the host launched and waited, until
  // note_times().
  const BucketTiming& timing() const { return timing_; }
  // The times of the last wait() on the device itself, once it has come so far.
  void note_times(BucketTiming& timing) const;

 private:
  std::string describe() const;

  PlannedBucket plan_;
  BucketView view_;
  BucketState state_ = BucketState::kFilling;
  size_t pending_;
  StreamTrail writers_;  // of main_grad, since the last launch
  WorkPtr work_;
  BucketTiming timing_;
  // On a device with streams, of the last step.
  struct DeviceTimes {
    StreamMark ready;
    StreamMark wait_begin;
    StreamMark wait_end;
    WorkPtr work;
  };
  DeviceTimes device_times_;
};

}  // namespace brigade
