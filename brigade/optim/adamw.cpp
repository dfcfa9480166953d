#include "brigade/optim/adamw.h"

#include <utility>

namespace brigade {

AdamW::AdamW(std::vector<OptimizerGroup> groups, const AdamWOptions& options)
    : Optimizer(
          std::move(groups),
          {.kind = OptimizerKind::kAdamW, .adamw = options}) {}

void AdamW::step_range(const StepRange& range) {
  adamw_step(range, options().adamw);
}

void adamw_step(const StepRange& range, const AdamWOptions& options) {
  ops::adamw_step(
      {.lr = range.lr,
       .beta1 = options.beta1,
       .beta2 = options.beta2,
       .eps = options.eps,
       .weight_decay = range.group.rule.weight_decay,
       .step = range.step,
       .grad_scale = range.grad_scale,
       .kernels = options.kernels},
      {range.group.main_grad,
       range.group.states[0].tensor,
       range.group.states[1].tensor,
       range.group.weight,
       find_state(range.group.states, kMasterLow)},
      range.after_read);
}

}  // namespace brigade
