#include "brigade/ops/adapted_weight.h"

namespace brigade::ops {

Tensor adapted_weight(const Tensor& weight, const LowRank& adapter) {
  const Tensor sum =
      at::matmul(adapter.b, adapter.a).mul_(adapter.scale).add_(weight);
  if (!adapter.magnitude.defined())
    return sum;
  const Tensor norms = sum.detach().norm(2, {1});
  return sum * (adapter.magnitude / norms).unsqueeze(1);
}

}  // namespace brigade::ops
