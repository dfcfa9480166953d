#include "brigade/ops/soft_targets.h"

namespace brigade::ops {
namespace {

// The least sum of the student outside of the support: below it the loss stays
// what it is there and has no gradient, so that both are finite.
constexpr double kLeastOutside = 1e-30;

// The teacher's probability outside of its k tokens: [N].
Tensor tail_of(const Tensor& probs) {
  // What the rounding of k float32 numbers may leave is none.
  constexpr double kRounding = 1e-6;
  const Tensor tail = 1 - probs.sum(1);
  return tail.masked_fill(tail < kRounding, 0);
}

}  // namespace

Tensor mixed_losses(
    const SoftTargets& teacher,
    const Tensor& cross_entropy,
    const Tensor& sums) {
  const Tensor log_probs = teacher.log_probs.to(sums.scalar_type());
  const Tensor probs = log_probs.exp();
  const Tensor tail = tail_of(probs);
  const Tensor log_sum = sums[0].log();
  const Tensor log_outside = sums[3].clamp_min(kLeastOutside).log() - log_sum;
  const Tensor inside =
      (probs * log_probs).sum(1) - sums[2] + probs.sum(1) * log_sum;
  const Tensor outside = at::xlogy(tail, tail) - tail * log_outside;
  return cross_entropy.lerp(inside + outside, teacher.weight);
}

Tensor factor_outside(const SoftTargets& teacher, const Tensor& sums) {
  const Tensor tail = tail_of(teacher.log_probs.to(sums.scalar_type()).exp());
  const Tensor ratio = (tail * sums[0] / sums[3].clamp_min(kLeastOutside))
                           .masked_fill(sums[3] < kLeastOutside, 0);
  return 1 - teacher.weight * ratio;
}

}  // namespace brigade::ops
