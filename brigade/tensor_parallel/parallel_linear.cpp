#include "brigade/tensor_parallel/parallel_linear.h"

#include <utility>

#include "brigade/ops/linear.h"
#include "brigade/ops/row_magnitude.h"
#include "brigade/tensor_parallel/input_region.h"
#include "brigade/tensor_parallel/mappings.h"

namespace brigade {

using torch::Tensor;

std::vector<Tensor> column_parallel_linear(
    const TensorParallel& parallel,
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const ops::LinearOptions& options) {
  if (parallel.size() == 1)
    return ops::linear_group(x, weights, biases, options);
  const InputRegion region(parallel);
  ops::LinearOptions linear = options;
  linear.on_input_grad = [region](const Tensor& input_grad) {
    region.start(input_grad);
    // The region's own backward waits, which comes later still.
    return std::function<void()>();
  };
  return ops::linear_group(region.enter(x), weights, biases, linear);
}

Tensor row_parallel_linear(
    const TensorParallel& parallel,
    const Tensor& x,
    const Tensor& weight,
    const Tensor& bias,
    const ops::LinearOptions& options) {
  ops::LinearOptions linear = options;
  linear.dropout.first_feature = parallel.rank() * x.size(-1);
  // They scale the sum over ranks, by norms that are sums over ranks too.
  Tensor magnitude;
  if (!linear.adapters.empty())
    std::swap(magnitude, linear.adapters.front().magnitude);
  Tensor sum;
  Tensor passed_by;  // what dropout zeroed, without magnitudes
  if (magnitude.defined() && linear.dropout.is_used()) {
    const ops::DroppedTerms terms =
        ops::dropped_terms(x, weight, options.adapters.front(), linear);
    passed_by = leave_region(terms.passed_by, parallel);
    sum = leave_region(terms.scaled, parallel);
  } else {
    sum = leave_region(ops::linear(x, weight, {}, linear), parallel);
  }
  if (magnitude.defined()) {
    const ops::LowRank& adapter = options.adapters.front();
    const Tensor squares = ops::squares_of(adapter, [&] {
      const Tensor sum_over_ranks = ops::row_squares(weight, adapter);
      parallel.group->all_reduce(sum_over_ranks)->wait();
      return sum_over_ranks;
    });
    sum = ops::with_magnitude(sum, magnitude, squares, options.weight_grad);
  }
  if (passed_by.defined())
    sum = passed_by + sum;
  if (!bias.defined())
    return sum;
  return sum + (options.weight_grad == ops::WeightGrad::kAccumulate
                    ? ops::accumulating("row_parallel_linear", bias)
                    : bias);
}

}  // namespace brigade
