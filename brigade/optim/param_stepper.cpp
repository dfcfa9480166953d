#include "brigade/optim/param_stepper.h"

#include <algorithm>
#include <utility>

#include "brigade/data_parallel/bucketed_grad_sync.h"
#include "brigade/optim/optimizer_groups.h"
#include "brigade/optim/param_states.h"

namespace brigade {

ParamStepper::ParamStepper(
    std::unique_ptr<GradSync> sync,
    StepRuleOf rule_of,
    MakeOptimizer make)
    : sync_(std::move(sync)),
      rule_of_(std::move(rule_of)),
      make_(std::move(make)) {
  if (auto* bucketed = dynamic_cast<BucketedGradSync*>(sync_.get())) {
    bucketed->follow(
        {.begins = [this] { return optimizer_->wants_reduced_gradients(); },
         .is_reduced =
             [this](size_t segment) {
               optimizer_->gradients_are_reduced(segment);
             }});
  }
  make_optimizer();
}

ParamSet::StatesByParam ParamStepper::make_optimizer() {
  std::vector<StepRule> rules;  // by group
  std::vector<int> group_of;
  for (const Param& param : sync_->params()) {
    const StepRule rule = rule_of_(param);
    const auto found = std::find(rules.begin(), rules.end(), rule);
    group_of.push_back(static_cast<int>(found - rules.begin()));
    if (found == rules.end())
      rules.push_back(rule);
  }
  optimizer_ = make_(make_optimizer_groups(*sync_, group_of, rules));
  layout_version_ = sync_->memory().layout_version();
  return note_states(*sync_, *optimizer_);
}

void ParamStepper::finish() {
  sync_->finish();
  if (sync_->memory().layout_version() == layout_version_)
    return;
  const int64_t steps = optimizer_->steps();
  const auto old = std::exchange(optimizer_, nullptr);
  // The optimizer's states have not moved, only gradients and weights.
  const ParamSet::StatesByParam before = make_optimizer();
  optimizer_->set_steps(steps);
  optimizer_->set_scalars(old->scalars());
  const torch::NoGradGuard no_grad;
  for (size_t i = 0; i < before.size(); ++i) {
    for (size_t k = 0; k < before[i].size(); ++k)
      copy_state(sync_->params()[i].states[k], before[i][k]);
  }
}

void ParamStepper::step(double lr, double grad_scale) {
  sync_->weights().need_all();
  LateStep late = optimizer_->start_step(lr, grad_scale, ops::AfterRead::kZero);
  sync_->reset();
  sync_->weights().after_step(std::move(late));
}

void ParamStepper::skip_step() {
  optimizer_->skip_step();
  sync_->zero_main_grads();
  sync_->reset();
}

}  // namespace brigade
