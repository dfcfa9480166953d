#include "brigade/tensor_parallel/parallel_norm.h"

#include "brigade/ops/weight_grad.h"
#include "brigade/tensor_parallel/mappings.h"

namespace brigade {

using torch::Tensor;

Tensor parallel_rms_norm(
    const CommunicatorPtr& group,
    const Tensor& x,
    const Tensor& weight,
    const ops::RmsNormFormula& formula,
    const ops::OpOptions& options) {
  if (group->size() == 1)
    return ops::rms_norm(x, weight, formula, options);
  const auto dtype =
      x.scalar_type() == torch::kDouble ? x.scalar_type() : torch::kFloat;
  const Tensor wide = x.to(dtype);
  // The mean of the ranks' means, each of as many elements.
  const Tensor mean =
      sum_region(wide.square().mean(-1, /*keepdim=*/true), group) /
      group->size();
  const bool accumulates =
      options.weight_grad == ops::WeightGrad::kAccumulate &&
      weight.requires_grad();
  const Tensor scale =
      (accumulates ? ops::accumulating("parallel_rms_norm", weight) : weight)
          .to(dtype) +
      formula.weight_offset;
  return (wide * torch::rsqrt(mean + formula.eps) * scale).to(x.scalar_type());
}

}  // namespace brigade
