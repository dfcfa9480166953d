// An optimizer over flat ranges of memory. It reads the fp32 main_grad where
// the reduction left it, steps the fp32 master and writes the (bf16 or fp32)
// weight. An optimizer says which states it keeps (StateSpec) and steps one
// range; this class owns the ranges, their states and masters, and counts the
// steps. Code that saves, loads or moves states walks them by name.
//
// Life: made once the parameters have their initial values, which masters take
// over (call reload_masters() if weights were changed from outside). Stepped by
// the trainer's thread between finish() and reset() (a LateStep may come after
// reset()), or group by group on the thread of backward
// (optim/step_in_backward.h).
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "brigade/base/flat_range.h"
#include "brigade/comm/communicator.h"
#include "brigade/ops/adamw.h"
#include "brigade/options/optimizer.h"
#include "brigade/options/optimizer_states.h"
#include "brigade/param/param_memory.h"
#include "brigade/param/state.h"
#include "brigade/param/step_rule.h"
#include "brigade/sharding/gathered_weights.h"

namespace brigade {

// A flat range of weights that one rule steps: a bucket, a shard of one, or a
// part of one.
struct OptimizerGroup {
  std::string name;         // appears in errors
  torch::Tensor weight;     // flat, bf16 or float32, contiguous
  torch::Tensor main_grad;  // flat, float32, contiguous, as long as weight
  StepRule rule;
  int param_group = 0;  // its learning rate: see Optimizer::step()
  // The memory that the tensors lie in; may be null. Once its owner has moved
  // to other memory, step() throws; if the owner replaces weights, masters
  // follow.
  std::shared_ptr<const FlatMemory> memory;
  // The parts of parameters (FlatMemory::params) that it has, in the order of
  // memory; padding belongs to none.
  std::vector<RunPart> parts = {};

  // ---- filled in by the optimizer

  std::vector<State> states = {};  // see Optimizer::states()
  int64_t weights_version = 0;     // FlatMemory's that masters have followed
};

// Returns the group of all ranks that have a part of a parameter, by tensor
// parallelism or as its replicas; no other matrix there has its name. If
// Optimizer::gradients_are_reduced() is called, nothing else may be launched on
// that group during backward.
using RanksOf = std::function<CommunicatorPtr(const Param& param)>;

// Throws UsageError naming the group whose param_group has no rate in `lrs`.
void check_has_rate(
    const OptimizerGroup& group,
    const std::vector<double>& lrs);

// One group at one step.
struct StepRange {
  size_t index = 0;  // of the group
  // The optimizer's own states come before kEma and kMasterLow, and are float32
  // in step_range().
  const OptimizerGroup& group;
  double lr = 0;  // the rule's rate is in it
  double grad_scale = 1;
  int64_t step = 1;  // counted from 1
  ops::AfterRead after_read = ops::AfterRead::kKeep;
  int64_t begin = 0;  // of its first element, in the group `index`
};

// Calls `change` with the float32 master of the range's weight, flat, and keeps
// what it writes.
void change_master(
    const StepRange& range,
    const std::function<void(torch::Tensor master)>& change);

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One step with gradients main_grad * grad_scale (1 / tokens, gradient
  // clipping, undoing a loss scale). kZero clears main_grad on the way, which
  // saves the clearing pass: the next step starts from zero. Throws UsageError
  // if the gradients have moved to other memory (OptimizerGroup::memory), or
  // between show_averages() and hide_averages(), and what
  // FlatMemory::before_step throws.
  void step(
      double lr,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kZero);

  // The same with a learning rate for each OptimizerGroup::param_group, which
  // may change from step to step. Throws UsageError if there are too few.
  void step(
      const std::vector<double>& lrs,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kZero);

  // The same step in parts, in any order: begin_step() with the rates, one for
  // all or by OptimizerGroup::param_group, and then step_group() once for each
  // group. Precondition: see check_steps_groups_apart().
  void begin_step(const std::vector<double>& lrs);
  // See begin_step().
  void step_group(
      size_t group,
      double lr,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kZero);

  // The sum of squares of all main_grads before any scale, this rank's part of
  // the global norm: a double scalar on the gradients' device, which may not be
  // computed yet. Not finite if a gradient is not; undefined without groups.
  torch::Tensor squared_gradients() const;

  // Steps done, for the bias correction and for checkpoints.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }  // when continuing

  OptimizerKind kind() const { return options_.kind; }
  const std::vector<OptimizerGroup>& groups() const { return groups_; }
  // The states that are kept of a weight of this dtype and unit, in the order
  // of states().
  std::vector<StateSpec> kept(StepUnit unit, torch::ScalarType weight) const;
  // The states of one group, flat and as long as its weight, in the order of
  // kept(); a checkpoint reads and writes these in place.
  const std::vector<State>& states(size_t group) const {
    return groups_.at(group).states;
  }

  // Sets masters to the weights' values, after weights were loaded.
  void reload_masters();

  // Throws UsageError if its ranks compute for one another, and therefore step
  // all groups at once, so that it cannot step in backward.
  virtual void check_steps_groups_apart() const {}

  // ---- a step that overlaps with backward and with the next forward, for
  // optimizers whose ranks compute for one another; others do nothing here

  // Called as a step's last backward begins; returns whether
  // gradients_are_reduced() has an effect in it. If not, gradients are not
  // waited for in backward.
  virtual bool wants_reduced_gradients() { return false; }
  // The gradients of one more run of flat memory (Param::owned) are final,
  // while backward computes others; runs are reported in order, from the first
  // one on. The same calls on all ranks, on the thread of backward.
  virtual void gradients_are_reduced(size_t /*run*/) {}
  // As step(), but what it returns is still to be stepped. Nothing else is
  // called between the two.
  [[nodiscard]] LateStep
  start_step(double lr, double grad_scale, ops::AfterRead after_read);
  // Called on all ranks instead of a step: these gradients are not used.
  virtual void skip_step() {}
  // From now on keeps a moving average of the weights (EMA;
  // OptimizerOptions::ema_decay). Called before the first step, and before
  // states are loaded.
  void keep_average(double decay);
  // From now on keeps moments in this dtype (OptimizerOptions::moments, seed).
  // Called before the first step, and before states are loaded. Throws
  // UsageError if the optimizer has no moments or they cannot be rounded, and
  // with kInt8 naming a group whose length, or a parameter's place in it, is
  // not a multiple of kBlockNumel (GradSyncOptions::block_numel).
  void keep_moments_in(MomentDtype dtype, uint64_t seed = 0);
  // Whether an average of the weights is what is evaluated and exported.
  bool averages_weights() const { return options_.averages_weights(); }
  // The average of a parameter's weights, in float32: kEma, or `master` itself
  // if none is kept. states: those of the parameter, shaped as the master.
  virtual torch::Tensor average(
      const torch::Tensor& master,
      const std::vector<State>& states) const;
  // Replaces weights by their average until hide_averages(), which restores
  // their bits. Does nothing without averages_weights(). If weights are
  // sharded, gather them after each of the two.
  void show_averages();
  // Undoes show_averages().
  void hide_averages();
  // Values by name that it keeps besides states, for checkpoints.
  virtual std::map<std::string, double> scalars() const { return {}; }
  // Sets values that scalars() returned.
  virtual void set_scalars(const std::map<std::string, double>& /*scalars*/) {}

 protected:
  // States are zero at first. Throws UsageError naming a group whose tensors
  // are not flat, contiguous, of one length and of the dtypes above.
  Optimizer(
      std::vector<OptimizerGroup> groups,
      const OptimizerOptions& options);
  Optimizer(Optimizer&&) = default;
  // Views of memory move with it.
  Optimizer& operator=(Optimizer&&) = default;

  const OptimizerOptions& options() const { return options_; }
  // Called when a step begins, whose number steps() is now; lrs as in
  // begin_step().
  virtual void begin(const std::vector<double>& /*lrs*/) {}
  // Steps all groups and calls complete() for each, except for what it returns.
  // By default each group is stepped by itself. grad_scale: that of all ranges,
  // of which this rank may have none.
  virtual LateStep step_ranges(
      const std::vector<StepRange>& ranges,
      double grad_scale);
  // Called when the weights of the range are stepped.
  void complete(const StepRange& range) const;
  // Steps the weights of one range, whose elements are independent of all
  // others'. Ranges longer than max_numel() are passed in parts.
  virtual void step_range(const StepRange& range) = 0;
  virtual int64_t max_numel() const { return kWholeRange; }
  static constexpr int64_t kWholeRange = std::numeric_limits<int64_t>::max();
  // The states of one group in float32; float32 states are returned themselves.
  std::vector<State> float_states(const std::vector<State>& states) const;
  // Calls `step` with the range and its states in float32, and then stores them
  // in the dtype that options say.
  void with_float_states(
      const StepRange& range,
      const std::function<void(const StepRange& range)>& step) const;
  // step_range() of parts of the range.
  void step_in_parts(const StepRange& range);
  // Calls `step` with parts of at most `most` elements, whose group has no
  // OptimizerGroup::parts.
  static void in_parts(
      const StepRange& range,
      int64_t most,
      const std::function<void(const StepRange& part)>& step);

 private:
  void make_states();
  void follow_memory();
  StepRange range_of(
      size_t group,
      double lr,
      double grad_scale,
      ops::AfterRead after_read) const;
  void keep_rounded(
      const StepRange& range,
      const State& state,
      const torch::Tensor& values) const;
  // lrs: one for all, or by OptimizerGroup::param_group.
  LateStep start_all(
      const std::vector<double>& lrs,
      double grad_scale,
      ops::AfterRead after_read);
  // Sets the moving average to the weights before the first step.
  void begin_average(const StepRange& range) const;
  void update_average(const StepRange& range) const;
  void note_stepped(const StepRange& range) const;

  std::vector<OptimizerGroup> groups_;
  OptimizerOptions options_;
  int64_t steps_ = 0;
  // The weights and low halves of masters, while averages are shown.
  std::vector<State> hidden_;
};

}  // namespace brigade
