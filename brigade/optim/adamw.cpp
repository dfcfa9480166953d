#include "brigade/optim/adamw.h"

#include <utility>

namespace brigade {

AdamW::AdamW(std::vector<OptimizerGroup> groups, const AdamWOptions& options)
    : Optimizer(
          std::move(groups),
          {.kind = OptimizerKind::kAdamW, .adamw = options},
          options.kernels),
      options_(options) {}

void AdamW::step_range(const Range& range) {
  ops::adamw_step(
      {.lr = range.lr,
       .beta1 = options_.beta1,
       .beta2 = options_.beta2,
       .eps = options_.eps,
       .weight_decay = range.group.rule.weight_decay,
       .step = range.step,
       .grad_scale = range.grad_scale,
       .kernels = options_.kernels},
      range.group.main_grad,
      range.states[0].tensor,
      range.states[1].tensor,
      range.group.weight,
      range.master,
      range.after_read);
}

}  // namespace brigade
