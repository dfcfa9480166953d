// Rows of experts.
#include "brigade/kernels/cpu/cpu_kernels.h"
#include "brigade/kernels/cpu/elements.h"
#include "brigade/kernels/cpu/expert_rows_kernel.h"

namespace brigade::ops {
namespace {

const float* weights_or_null(const Tensor& weights) {
  return weights.defined() ? data<float>(weights) : nullptr;
}

}  // namespace

Tensor CpuKernels::rows_of_pairs(
    const Tensor& x,
    const ExpertPairs& pairs,
    const Tensor& weights) const {
  const Tensor from = x.contiguous();
  const Tensor rows =
      at::empty({pairs.pair_of_row.size(0), x.size(1)}, x.options());
  with_element_type(from, [&](auto element) {
    using T = decltype(element);
    const RowsOfPairs<T> kernel{
        .x = data<T>(from),
        .pair_of_row = data<int64_t>(pairs.pair_of_row),
        .weights = weights_or_null(weights),
        .rows = data<T>(rows),
        .columns = rows.size(1),
        .per_token = pairs.per_token()};
    run_in_tasks(
        rows.size(0),
        rows_per_task(kernel.columns),
        ops::rows_of_pairs,
        kernel);
  });
  return rows;
}

Tensor CpuKernels::sum_of_pairs(
    const Tensor& rows,
    const ExpertPairs& pairs,
    const Tensor& weights) const {
  const Tensor from = rows.contiguous();
  const Tensor sum = at::empty({pairs.tokens(), rows.size(1)}, rows.options());
  with_element_type(from, [&](auto element) {
    using T = decltype(element);
    const SumOfPairs<T> kernel{
        .rows = data<T>(from),
        .row_of_pair = data<int64_t>(pairs.row_of_pair),
        .weights = weights_or_null(weights),
        .sum = data<T>(sum),
        .columns = sum.size(1),
        .per_token = pairs.per_token()};
    run_in_tasks(
        sum.size(0),
        rows_per_task(kernel.columns * kernel.per_token),
        ops::sum_of_pairs,
        kernel);
  });
  return sum;
}

Tensor CpuKernels::products_of_pairs(
    const Tensor& rows,
    const Tensor& x,
    const ExpertPairs& pairs) const {
  const Tensor from = rows.contiguous();
  const Tensor other = x.contiguous();
  const Tensor products =
      at::empty(pairs.row_of_pair.sizes(), rows.options().dtype(torch::kFloat));
  with_element_type(from, [&](auto element) {
    using T = decltype(element);
    const ProductsOfPairs<T> kernel{
        .rows = data<T>(from),
        .x = data<T>(other),
        .row_of_pair = data<int64_t>(pairs.row_of_pair),
        .products = data<float>(products),
        .columns = from.size(1),
        .per_token = pairs.per_token()};
    run_in_tasks(
        pairs.tokens(),
        rows_per_task(kernel.columns * kernel.per_token),
        ops::products_of_pairs,
        kernel);
  });
  return products;
}

}  // namespace brigade::ops
