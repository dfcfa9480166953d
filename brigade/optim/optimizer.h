// An optimizer over flat ranges of memory. It reads the fp32 main_grad where
// the reduction left it, steps the fp32 master and writes the (bf16 or fp32)
// weight. An optimizer says which states it keeps (StateSpec) and steps one
// range; this class owns the ranges, their states and masters, and counts the
// steps. Code that saves, loads or moves states walks them by name.
//
// Life: made after the parameters have their first values, which are the
// masters' (call reload_masters() after weights were changed from outside),
// stepped by the trainer's thread between finish() and reset(), what
// start_step() leaves to finish_step() after it, or group by group on the
// thread of backward (data_parallel/step_in_backward.h).
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
#include "brigade/ops/adamw.h"
#include "brigade/ops/stochastic_rounding.h"
#include "brigade/options/optimizer.h"
#include "brigade/options/optimizer_states.h"
#include "brigade/param/param_memory.h"
#include "brigade/param/state.h"
#include "brigade/param/step_rule.h"

namespace brigade {

// A flat run of weights that one rule steps: a bucket, a shard of one, or a
// part of one.
struct OptimizerGroup {
  std::string name;         // appears in errors
  torch::Tensor weight;     // flat, bf16 or float32, contiguous
  torch::Tensor main_grad;  // flat, float32, contiguous, as long as weight
  StepRule rule;
  int param_group = 0;  // its learning rate: see Optimizer::step()
  // The memory that the tensors lie in; may be null. Once its owner has moved,
  // step() throws; when it replaces weights, masters follow.
  std::shared_ptr<const FlatMemory> memory;
  // What it has of which parameters, in the order of memory; padding is of
  // none.
  std::vector<RunPart> parts = {};
  // By part: the parameter's key and where the elements stand in it whole, so
  // that random numbers are the same in every layout. Where it is not given the
  // key is 0.
  std::vector<ops::RandomBits> bits = {};
};

// Throws ConfigError naming the group whose param_group has no rate in `lrs`.
void check_has_rate(
    const OptimizerGroup& group,
    const std::vector<double>& lrs);

// One group at one step.
struct StepRange {
  size_t index = 0;  // of the group
  const OptimizerGroup& group;
  // The optimizer's own come first; float32 where step_range() has them.
  const std::vector<State>& states;
  torch::Tensor master_low;  // undefined where the weight is float32
  double lr = 0;             // the rule's rate is in it
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

  // One step with gradients main_grad * grad_scale (1 / tokens, clipping).
  // kZero clears main_grad on the way, which saves the clearing pass: the next
  // step starts from zero. Throws ConfigError when the gradients are in other
  // memory by now (OptimizerGroup::memory), and what FlatMemory::before_step
  // throws.
  void step(
      double lr,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kZero);

  // The same with a learning rate for each OptimizerGroup::param_group, which
  // may change from step to step. Throws ConfigError where there are too few.
  void step(
      const std::vector<double>& lrs,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kZero);

  // The same step in parts, in any order: begin_step() with the rates, one for
  // all or by OptimizerGroup::param_group, and then step_group() of each group
  // once. Only where steps_groups_apart().
  void begin_step(const std::vector<double>& lrs);
  // See begin_step().
  void step_group(
      size_t group,
      double lr,
      double grad_scale = 1.0,
      ops::AfterRead after_read = ops::AfterRead::kZero);

  // The sum of squares of all main_grads before any scale, this rank's part of
  // the global norm: a double scalar on the gradients' device, which nobody
  // waits for. Not finite when a gradient is not; undefined without groups.
  torch::Tensor squared_gradients() const;

  // Steps done, for the bias correction and for checkpoints.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }  // when continuing

  OptimizerKind kind() const { return options_.kind; }
  const std::vector<OptimizerGroup>& groups() const { return groups_; }
  // What is kept of a weight of that dtype that is stepped so, in the order of
  // states().
  std::vector<StateSpec> kept(StepUnit unit, torch::ScalarType weight) const;
  // The states of one group, flat and as long as its weight, in the order of
  // kept(); a checkpoint reads and writes these in place.
  const std::vector<State>& states(size_t group) const {
    return states_.at(group);
  }

  // Masters become the weights' values: after weights were loaded.
  void reload_masters();

  // False: its ranks compute for one another, and step all groups at once.
  virtual bool steps_groups_apart() const { return true; }

  // ---- a step that overlaps with backward and with the next forward, where
  // ranks compute for one another; other optimizers do nothing of it

  // A step's last backward begins: whether gradients_are_reduced() is of use
  // in it. Where it has no effect, gradients are not waited for in backward.
  virtual bool wants_reduced_gradients() { return false; }
  // Gradients are final, while backward computes others': those of `params`
  // (RunPart::param), the same calls in one order on all ranks, and of the
  // groups that this rank has of them. On the thread of backward.
  virtual void gradients_are_reduced(
      const std::vector<int>& /*params*/,
      const std::vector<size_t>& /*groups*/) {}
  // step(), but that the weights of unfinished() are not stepped before
  // finish_step(), which waits for other ranks. Nothing else is called between
  // the two.
  void start_step(double lr, double grad_scale, ops::AfterRead after_read);
  // See start_step().
  virtual void finish_step() {}
  // After start_step(), the same on all ranks: RunPart::param.
  virtual std::vector<int> unfinished() const { return {}; }
  // Instead of a step, on all ranks: nothing comes of these gradients.
  virtual void skip_step() {}
  // From now on keeps a moving average of the weights (OptimizerOptions::
  // ema_decay). Before the first step, and before states are loaded.
  void keep_average(double decay);
  // From now on keeps moments in that dtype (OptimizerOptions::moments, seed).
  // Before the first step, and before states are loaded. Throws ConfigError
  // where the optimizer has no moments or its own cannot be rounded, and with
  // kInt8 naming a parameter whose place in memory is not a multiple of
  // kBlockNumel (GradSyncOptions::block_numel).
  void keep_moments_in(MomentDtype dtype, uint64_t seed = 0);
  // Whether an average of the weights is what is evaluated and exported.
  bool averages_weights() const { return options_.averages_weights(); }
  // The average of a parameter's weights, in float32: kEma, or `master` itself
  // where none is kept. states: of the parameter, shaped as the master.
  virtual torch::Tensor average(
      const torch::Tensor& master,
      const std::vector<State>& states) const;
  // Weights become their average until hide_averages(), which brings back their
  // bits; nothing without averages_weights(). Where weights are sharded, gather
  // them after each.
  void show_averages();
  // Undoes show_averages().
  void hide_averages();
  // What it keeps besides states, by name, for checkpoints.
  virtual std::map<std::string, double> scalars() const { return {}; }
  // Takes what scalars() gave.
  virtual void set_scalars(const std::map<std::string, double>& /*scalars*/) {}

 protected:
  // States begin with zeros. Throws an Error naming a group whose tensors are
  // not flat, contiguous, of one length and of the dtypes above.
  Optimizer(
      std::vector<OptimizerGroup> groups,
      const OptimizerOptions& options);
  Optimizer(Optimizer&&) = default;
  // Views of memory move with it.
  Optimizer& operator=(Optimizer&&) = default;

  const OptimizerOptions& options() const { return options_; }
  // A step begins, whose number steps() is now; as begin_step().
  virtual void begin(const std::vector<double>& /*lrs*/) {}
  // Steps all groups and complete()s each, those that finish_step() steps
  // excepted; each by itself unless an optimizer does otherwise.
  // grad_scale: of all ranges, of which this rank may have none.
  virtual void step_ranges(
      const std::vector<StepRange>& ranges,
      double grad_scale);
  // The weights of the range are stepped.
  void complete(const StepRange& range) const;
  // Steps the weights of one range, whose elements are independent of all
  // others'. Long ranges come in parts where max_numel() says so.
  virtual void step_range(const StepRange& range) = 0;
  virtual int64_t max_numel() const { return kWholeRange; }
  static constexpr int64_t kWholeRange = std::numeric_limits<int64_t>::max();
  // The states of one group in float32; those that are, themselves.
  std::vector<State> float_states(const std::vector<State>& states) const;
  // Calls `step` with the range and its states in float32, and keeps what it
  // writes into them as options say.
  void with_float_states(
      const StepRange& range,
      const std::function<void(const StepRange& range)>& step) const;
  // step_range() of parts of the range.
  void step_in_parts(const StepRange& range);
  // Calls `step` with parts of at most so many elements, whose group has no
  // OptimizerGroup::parts.
  static void in_parts(
      const StepRange& range,
      int64_t most,
      const std::function<void(const StepRange& part)>& step);

 private:
  void make_states();
  void follow_memory();
  torch::Tensor master_low(size_t group) const;
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
  void start_all(
      const std::vector<double>& lrs,
      double grad_scale,
      ops::AfterRead after_read);
  // A moving average begins with the weights before the first step.
  void begin_average(const StepRange& range) const;
  void update_average(const StepRange& range) const;
  void note_stepped(const StepRange& range) const;

  std::vector<OptimizerGroup> groups_;
  OptimizerOptions options_;
  std::vector<std::vector<State>> states_;  // by group
  int64_t steps_ = 0;
  std::vector<int64_t> weights_versions_;  // by group: FlatMemory's
  std::vector<State>
      hidden_;  // weights and their rest, while averages are shown
};

}  // namespace brigade
