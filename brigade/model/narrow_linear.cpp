#include "brigade/model/narrow_linear.h"

#include "brigade/ops/input_dropout.h"
#include "brigade/ops/weight_grad.h"

namespace brigade {

using torch::Tensor;

Tensor narrow_linear(
    const ModelContext& context,
    const Tensor& x,
    const Weights& weights) {
  const auto times = [&](const Tensor& input, const Tensor& weight) {
    const Tensor own = context.weight_grad == ops::WeightGrad::kAccumulate
                           ? ops::accumulating("narrow_linear", weight)
                           : weight;
    return torch::matmul(input, own.to(x.scalar_type()).t());
  };
  const Tensor y = times(x, weights.weight);
  const ops::LowRank& adapter = weights.adapter;
  if (!adapter.a.defined())
    return y;
  Tensor left = x;
  double scale = adapter.scale;
  const ops::InputDropout dropout{
      context.dropout.rate,
      own_tokens(context.tensor_parallel, context.dropout.token_keys)};
  if (dropout.is_used()) {
    const Tensor mask = torch::ones(x.sizes(), x.options());
    ops::drop_elements(mask, dropout, adapter.key, context.kernels);
    left = x * mask;
    scale /= 1 - dropout.rate;
  }
  return y + times(times(left, adapter.a), adapter.b) * scale;
}

Tensor own_tokens(const TensorParallel& parallel, const Tensor& of_all) {
  if (!of_all.defined() || parallel.tokens != TokenLayout::kSharded)
    return of_all;
  const int64_t tokens = of_all.size(0) / parallel.size();
  return of_all.narrow(0, parallel.rank() * tokens, tokens);
}

}  // namespace brigade
