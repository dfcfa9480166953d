#include "brigade/optim/sgd.h"

#include <utility>

namespace brigade {

Sgd::Sgd(std::vector<OptimizerGroup> groups, const SgdOptions& options)
    : Optimizer(
          std::move(groups),
          {.kind = OptimizerKind::kSgd, .sgd = options}) {}

void Sgd::step_range(const StepRange& range) {
  const torch::NoGradGuard no_grad;
  const SgdOptions& sgd = options().sgd;
  change_master(range, [&](torch::Tensor master) {
    const torch::Tensor gradient = range.group.main_grad * range.grad_scale;
    if (range.group.rule.weight_decay != 0)
      gradient.add_(master, range.group.rule.weight_decay);
    if (sgd.momentum == 0) {
      master.add_(gradient, -range.lr);
      return;
    }
    torch::Tensor momentum = range.group.states[0].tensor;
    momentum.mul_(sgd.momentum).add_(gradient);
    if (sgd.nesterov)
      gradient.add_(momentum, sgd.momentum);
    master.add_(sgd.nesterov ? gradient : momentum, -range.lr);
  });
  if (range.after_read == ops::AfterRead::kZero)
    range.group.main_grad.zero_();
}

}  // namespace brigade
