// What a teacher says of the tokens that a head predicts: the log-probabilities
// of the k tokens that it finds likeliest at each place, and the loss of
// learning from them.
//
// The teacher's probability that is left, t = 1 - sum p, is one more class, and
// so is the student's outside of the same k tokens, u = 1 - sum q. The loss of
// a token is the Kullback-Leibler divergence of these k + 1 classes,
//
//   sum p log(p / q) + t log(t / u),
//
// as in TRL's server_distillation (loss_add_tail). It is never more than that
// of the whole distributions, and is least where these agree; of the k
// probabilities divided by their sum a student becomes surer than its teacher
// (Anshumann et al. 2025, arXiv 2503.16870). The gradient by a logit is q - p
// in the support and q (1 - t / u) outside of it. There is no temperature: the
// softmax at another one depends on all logits, of which k are known.
#pragma once

#include <torch/types.h>

namespace brigade::ops {

using torch::Tensor;

// What a teacher says of N tokens; k is at least 1.
struct SoftTargets {
  Tensor ids;         // int64 [N, k], of the whole vocabulary; all different
  Tensor log_probs;   // float32 [N, k], finite
  double weight = 1;  // of this loss; cross-entropy has the rest
};

// Both losses of each token by their weights: wide [N]. cross_entropy: wide
// [N]; sums: wide [4, N], HeadStatistics::sums of the whole vocabulary.
Tensor mixed_losses(
    const SoftTargets& teacher,
    const Tensor& cross_entropy,
    const Tensor& sums);

// What softmax is multiplied with outside of the support to be the gradient of
// a token's loss, wide [N]: 1 - weight * t / u. sums: as above.
Tensor factor_outside(const SoftTargets& teacher, const Tensor& sums);

}  // namespace brigade::ops
