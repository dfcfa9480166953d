// The parameters of a model part on this rank, frozen ones too, with what
// reduces the gradients of those that train and what steps them: one walk that
// reads parameters and all that is kept of them, and one that fills them,
// whatever of it this rank has.
//
// Called by the trainer's thread: finish() between backwards, the rest between
// steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/data_parallel/param_states.h"
#include "brigade/optim/optimizer.h"
#include "brigade/param/param.h"
#include "brigade/param/step_rule.h"

namespace brigade {

class ParamSet {
 public:
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(
      std::vector<OptimizerGroup> groups)>;
  using Visit = std::function<void(const Param& param)>;

  // `sync` hands over main_grad. `make` is called again where the sync plans
  // its memory anew.
  ParamSet(
      std::unique_ptr<GradSync> sync,
      StepRuleOf rule_of,
      MakeOptimizer make);
  ParamSet(const ParamSet&) = delete;
  ParamSet& operator=(const ParamSet&) = delete;

  GradSync& sync() const { return *sync_; }
  Optimizer& optimizer() const { return *optimizer_; }
  // Those that train, as the sync has them, and those that do not.
  std::span<const Param> params() const { return sync_->params(); }
  std::span<const Param> frozen() const { return sync_->frozen(); }
  int64_t numel() const;  // of all, frozen ones too

  // GradSync::finish(). Where that moved the gradients and weights to other
  // memory (BucketOrder::kObserved, after the first step), the optimizer's
  // states follow.
  void finish();
  // Optimizer::step(), which clears the gradients, and GradSync::reset() and
  // gather_weights(). What still travels when it returns is waited for where
  // its weights are needed (GradSync::wait_for_weight()).
  void step(double lr, double grad_scale);
  // Ends a step without an update: gradients are cleared, weights and states
  // stay.
  void skip_step();

  // Calls `visit` with each parameter and its states (a frozen one has none), in
  // an order that all ranks share. What is sharded is gathered for the call,
  // collectively; the tensors are views, and valid only until it returns.
  void visit(const Visit& visit) const;
  // Calls `fill` with each parameter and its states and keeps what it writes
  // into the tensors: this rank's part, where they are sharded. Collective
  // where weights are (ZeRO's stage 3).
  void fill(const Visit& fill);
  // By group, what its ranks hold alike: weights unless they are sharded, and
  // without sharding the optimizer's states, as NAME.PARAMETER. Views: valid
  // until the next step.
  std::vector<std::pair<CommunicatorPtr, std::vector<State>>> replicas() const;

  // GradSync::regroup().
  void regroup(const CommunicatorPtr& from, const CommunicatorPtr& to) {
    sync_->regroup(from, to);
  }

 private:
  bool is_sharded() const {
    return sync_->options().sharding != Sharding::kNone;
  }
  void make_optimizer();
  // Without sharding.
  std::vector<Param> with_states() const;
  void visit_sharded(const Visit& visit) const;
  void visit_frozen(const Visit& visit) const;

  std::unique_ptr<GradSync> sync_;
  StepRuleOf rule_of_;
  MakeOptimizer make_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParamStates> states_;  // of optimizer_
  int64_t layout_version_ = 0;           // that the optimizer is made for
  std::vector<std::vector<size_t>> groups_of_segment_;  // of the optimizer
};

}  // namespace brigade
