// Rows of experts by ATen's calls.
#include "brigade/kernels/aten/wide.h"
#include "brigade/ops/kernel_set.h"

namespace brigade::ops {
namespace {

// Each token's row for its choice, wide.
Tensor
rows_of_choice(const Tensor& rows, const ExpertPairs& pairs, int64_t choice) {
  return wide(rows.index_select(0, pairs.row_of_pair.select(1, choice)));
}

}  // namespace

Tensor KernelSet::rows_of_pairs(
    const Tensor& x,
    const ExpertPairs& pairs,
    const Tensor& weights) const {
  const Tensor tokens = at::div(pairs.pair_of_row, pairs.per_token(), "floor");
  const Tensor rows = x.index_select(0, tokens);
  if (!weights.defined())
    return rows;
  return (wide(rows) *
          weights.reshape({-1, 1}).index_select(0, pairs.pair_of_row))
      .to(x.scalar_type());
}

Tensor KernelSet::sum_of_pairs(
    const Tensor& rows,
    const ExpertPairs& pairs,
    const Tensor& weights) const {
  Tensor sum = at::zeros(
      {pairs.tokens(), rows.size(1)}, rows.options().dtype(wide_dtype(rows)));
  for (int64_t choice = 0; choice < pairs.per_token(); ++choice) {
    const Tensor of_choice = rows_of_choice(rows, pairs, choice);
    if (weights.defined())
      sum.addcmul_(of_choice, weights.narrow(1, choice, 1));
    else
      sum.add_(of_choice);
  }
  return sum.to(rows.scalar_type());
}

Tensor KernelSet::products_of_pairs(
    const Tensor& rows,
    const Tensor& x,
    const ExpertPairs& pairs) const {
  const Tensor values = wide(x);
  Tensor products = at::empty(pairs.row_of_pair.sizes(), values.options());
  for (int64_t choice = 0; choice < pairs.per_token(); ++choice)
    products.select(1, choice).copy_(
        (rows_of_choice(rows, pairs, choice) * values).sum(1));
  return products;
}

}  // namespace brigade::ops
