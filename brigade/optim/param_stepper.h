// Steps the parameters of a GradSync with an optimizer, whose states are kept
// beside them (Param::states): what a model part's trainer calls.
//
// Called by the trainer's thread: finish() between backwards, the rest between
// steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "brigade/data_parallel/grad_sync.h"
#include "brigade/optim/optimizer.h"
#include "brigade/param/step_rule.h"

namespace brigade {

class ParamStepper {
 public:
  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(
      std::vector<OptimizerGroup> groups)>;

  // `sync` hands over main_grad. `make` is called again if the sync plans its
  // memory again.
  ParamStepper(
      std::unique_ptr<GradSync> sync,
      StepRuleOf rule_of,
      MakeOptimizer make);
  ParamStepper(const ParamStepper&) = delete;
  ParamStepper& operator=(const ParamStepper&) = delete;

  GradSync& sync() const { return *sync_; }
  Optimizer& optimizer() const { return *optimizer_; }

  // GradSync::finish(). If that moved gradients and weights to other memory
  // (BucketOrder::kObserved, after the first step), the optimizer's states move
  // too.
  void finish();
  // Optimizer::step(), which clears the gradients, and GradSync::reset() and
  // gather_weights(). Weights that are still under way when it returns are
  // waited for when they are needed (GradSync::weights()).
  void step(double lr, double grad_scale);
  // Ends a step without an update: gradients are cleared, weights and states
  // stay.
  void skip_step();

 private:
  // Returns the states of the one before.
  ParamSet::StatesByParam make_optimizer();

  std::unique_ptr<GradSync> sync_;
  StepRuleOf rule_of_;
  MakeOptimizer make_;
  std::unique_ptr<Optimizer> optimizer_;
  int64_t layout_version_ = 0;  // that the optimizer is made for
};

}  // namespace brigade
