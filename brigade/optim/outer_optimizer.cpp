#include "brigade/optim/outer_optimizer.h"

#include <fmt/format.h>

#include "brigade/base/error.h"

namespace brigade {

void outer_step(
    const OuterOptimizerOptions& options,
    torch::Tensor weight,
    torch::Tensor momentum,
    const torch::Tensor& gradient) {
  const auto is_flat = [&](const torch::Tensor& tensor) {
    return tensor.scalar_type() == torch::kFloat && tensor.dim() == 1 &&
           tensor.numel() == weight.numel();
  };
  if (!is_flat(weight) || !is_flat(momentum) || !is_flat(gradient)) {
    throw UsageError(fmt::format(
        "[outer_step] weight of {}, momentum of {} and gradient of {} "
        "elements: expected flat float32 tensors of one length",
        weight.numel(),
        momentum.numel(),
        gradient.numel()));
  }
  const torch::NoGradGuard no_grad;
  momentum.mul_(options.momentum).add_(gradient);
  weight.add_(gradient, -options.lr);
  if (options.momentum != 0)
    weight.add_(momentum, -options.lr * options.momentum);
}

}  // namespace brigade
