// The parameters of a model part on this rank, frozen ones too, with the
// GradSync that reduces their gradients and the optimizer that steps them.
// visit() reads each parameter with its states, and fill() writes them,
// whatever part of them this rank holds.
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
#include "brigade/optim/optimizer.h"
#include "brigade/optim/param_states.h"
#include "brigade/param/param.h"
#include "brigade/param/step_rule.h"

namespace brigade {

class ParamSet {
 public:
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(
      std::vector<OptimizerGroup> groups)>;
  using Visit = std::function<void(const Param& param)>;

  // `sync` hands over main_grad. `make` is called again if the sync plans its
  // memory again.
  ParamSet(
      std::unique_ptr<GradSync> sync,
      StepRuleOf rule_of,
      MakeOptimizer make);
  ParamSet(const ParamSet&) = delete;
  ParamSet& operator=(const ParamSet&) = delete;

  GradSync& sync() const { return *sync_; }
  Optimizer& optimizer() const { return *optimizer_; }
  // The parameters that train, as the sync has them, and the frozen ones.
  std::span<const Param> params() const { return sync_->params(); }
  std::span<const Param> frozen() const { return sync_->frozen(); }
  int64_t numel() const;  // of all, frozen ones too

  // GradSync::finish(). If that moved gradients and weights to other memory
  // (BucketOrder::kObserved, after the first step), the optimizer's states move
  // too.
  void finish();
  // Optimizer::step(), which clears the gradients, and GradSync::reset() and
  // gather_weights(). Weights that are still under way when it returns are
  // waited for when they are needed (GradSync::wait_for_weight()).
  void step(double lr, double grad_scale);
  // Ends a step without an update: gradients are cleared, weights and states
  // stay.
  void skip_step();

  // Calls `visit` with each parameter and its states (a frozen one has none),
  // in an order that all ranks share. Sharded tensors are gathered for the
  // call, collectively; all are views that are valid only until it returns.
  void visit(const Visit& visit) const;
  // Calls `fill` with each parameter and its states and keeps what it writes
  // into the tensors (this rank's part, if they are sharded). Collective if
  // weights are sharded (ZeRO-3).
  void fill(const Visit& fill);
  // By group, the tensors that are equal on its ranks: weights unless they are
  // sharded, and without sharding the optimizer's states, as NAME.PARAMETER.
  // Views: valid until the next step.
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
  // Precondition: no sharding.
  std::vector<Param> with_states() const;
  void visit_sharded(const Visit& visit) const;
  void visit_frozen(const Visit& visit) const;

  std::unique_ptr<GradSync> sync_;
  StepRuleOf rule_of_;
  MakeOptimizer make_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<ParamStates> states_;  // of optimizer_
  int64_t layout_version_ = 0;           // that the optimizer is made for
};

}  // namespace brigade
