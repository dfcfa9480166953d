// AdamW on flat ranges of memory: reads fp32 main_grad where the reduction left
// it, steps the fp32 master and writes the (bf16 or fp32) weight, one pass over
// memory per group. The arithmetic is torch.optim.AdamW's;
// see ops/adamw.h. Of a bf16 weight's master only what the weight lacks is kept
// (ops/split_master.h): 12 bytes of state and weight per element, not 14.
//
// Life: made after the parameters have their first values, which are the
// masters' (call reload_masters() after weights were changed from outside),
// stepped by the trainer's thread between finish() and reset().
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "brigade/ops/adamw.h"
#include "brigade/optim/flat_memory.h"

namespace brigade {

// A flat run of weights stepped together: a bucket, a shard of one, or a part
// of one that has its own weight decay.
struct AdamWGroup {
  std::string name;         // appears in errors
  torch::Tensor weight;     // flat, bf16 or float32, contiguous
  torch::Tensor main_grad;  // flat, float32, contiguous, as long as weight
  double weight_decay = 0.0;
  // The memory that the tensors lie in; may be null. Once its owner has moved,
  // step() throws; when it replaces weights, masters follow.
  std::shared_ptr<const FlatMemory> memory;
};

// The state of one group, all flat and as long as the group's weight.
struct AdamWState {
  torch::Tensor master_low;  // int16; undefined where the weight is float32
  torch::Tensor exp_avg;     // float32
  torch::Tensor exp_avg_sq;  // float32
};

// torch.optim.AdamW's, with its defaults.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  ops::Kernels kernels = ops::Kernels::kAuto;
};

class AdamW {
 public:
  AdamW(std::vector<AdamWGroup> groups, AdamWOptions options);

  // One step with gradients main_grad * grad_scale (1 / tokens, clipping).
  // kZero clears main_grad on the way, which saves the clearing pass. Throws
  // ConfigError when the gradients are in other memory by now (AdamWGroup::
  // memory).
  void step(
      double lr,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kKeep);

  // The same step in parts, in any order: begin_step(), and then step_group()
  // of each group once.
  void begin_step();
  // See begin_step().
  void step_group(
      size_t group,
      double lr,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kKeep);

  // The sum of squares of all main_grads before any scale; this rank's part of
  // the global norm. Not finite when a gradient is not.
  double sum_of_squared_gradients() const;
  // The same as a double scalar on the gradients' device, which nobody waits
  // for; undefined without groups.
  torch::Tensor squared_gradients() const;

  // Steps done, for the bias correction and for checkpoints.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }  // when continuing

  const std::vector<AdamWGroup>& groups() const { return groups_; }
  // As many as groups(); a checkpoint reads and writes these in place.
  const std::vector<AdamWState>& states() const { return states_; }

  // Masters become the weights' values: after weights were loaded.
  void reload_masters();

 private:
  void follow_memory();

  std::vector<AdamWGroup> groups_;
  std::vector<AdamWState> states_;
  AdamWOptions options_;
  int64_t steps_ = 0;
  std::vector<int64_t> weights_versions_;  // by group: FlatMemory's
};

}  // namespace brigade
