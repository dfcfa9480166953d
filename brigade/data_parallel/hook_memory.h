// The state that a hook with error feedback keeps from step to step, by
// parameter, so that a checkpoint can hold it and a run goes on bit for bit.
//
// A hook with a memory serves one model: a bucket of another one with the same
// parameters (ranks that are threads and share the hook) is refused. All
// functions are called between steps except add(), which the hook calls where
// it runs (BucketHook). PowerSgdOptions::exact_steps are not kept: they are
// counted again from 0.
#pragma once

#include <torch/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "brigade/data_parallel/bucket_hook.h"
#include "brigade/param/state.h"

namespace brigade {

// The state of one bucket in a hook.
struct KeptOfBucket {
  // KIND.PARAMETER: float32, of this rank alone. Views of the hook's tensors:
  // restore() writes through them.
  std::vector<State> kept;
};

class HookMemory {
 public:
  // The states of every bucket that was reduced and was not planned again
  // since, and those that were restored and no bucket has taken yet.
  std::vector<State> tensors() const;
  // Zeroes the errors. After a step whose gradients were dropped as not finite
  // they may be as large as the values that caused it.
  void drop_errors();
  // `kept`, one of tensors(), becomes the first state of the bucket with that
  // parameter. Called before its first reduction.
  void restore(State kept);

  // Called by hooks: adds a new state, which takes what was restored. Throws
  // DataError if that has another length, UsageError if a bucket of another
  // model has these parameters.
  void add(const std::shared_ptr<KeptOfBucket>& bucket);

 private:
  void refuse_another_model(const KeptOfBucket& bucket) const;

  std::vector<std::weak_ptr<KeptOfBucket>> buckets_;
  std::map<std::string, torch::Tensor> restored_;  // by KIND.PARAMETER
};

// Shared by a hook and the code that saves what it keeps.
using HookMemoryPtr = std::shared_ptr<HookMemory>;

// As int8_hook() and powersgd_hook(). `memory` holds for each parameter
// "errors", what was lost so far, and for a matrix that PowerSGD factors also
// "factor", with which its next step begins.
BucketHook int8_hook(HookMemoryPtr memory);
// See above.
BucketHook powersgd_hook(const PowerSgdOptions& options, HookMemoryPtr memory);

}  // namespace brigade
