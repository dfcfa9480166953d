#include "brigade/context_parallel/merge_partials.h"

namespace brigade {

using torch::Tensor;

void merge_partials(
    ops::AttentionResult whole,
    const ops::AttentionResult& part) {
  const torch::NoGradGuard no_grad;
  const Tensor lse = torch::logaddexp(whole.lse, part.lse);
  // Not a number where neither sees a key: -infinity - -infinity.
  const Tensor share = torch::exp(part.lse - lse).nan_to_num_(0.0);
  // [B, H, Tq] -> [B, Tq, H, 1]
  whole.out.lerp_(part.out, share.transpose(1, 2).unsqueeze(-1));
  whole.lse.copy_(lse);
}

}  // namespace brigade
