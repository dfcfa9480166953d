#include "brigade/ops/row_magnitude.h"

#include <algorithm>
#include <utility>

#include "brigade/ops/adapted_weight.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/weight_grad.h"

namespace brigade::ops {

bool has_magnitude(const std::vector<LowRank>& adapters) {
  return std::any_of(
      adapters.begin(), adapters.end(), [](const LowRank& adapter) {
        return adapter.magnitude.defined();
      });
}

Tensor row_squares(const Tensor& weight, const LowRank& adapter) {
  const torch::NoGradGuard no_grad;
  const auto wide = [](const Tensor& tensor) {
    return tensor.to(torch::kFloat);
  };
  return adapted_weight(
             wide(weight),
             {.a = wide(adapter.a),
              .b = wide(adapter.b),
              .scale = adapter.scale})
      .square_()
      .sum(1);
}

Tensor squares_of(
    const LowRank& adapter,
    const std::function<Tensor()>& compute) {
  if (!adapter.kept_squares || adapter.magnitude.requires_grad())
    return compute();
  if (!adapter.kept_squares->defined())
    *adapter.kept_squares = compute();
  return *adapter.kept_squares;
}

Tensor with_magnitude(
    const Tensor& output,
    const Tensor& magnitude,
    const Tensor& squares,
    WeightGrad weight_grad) {
  constexpr const char* kOp = "with_magnitude";
  require(
      magnitude.dim() == 1 && magnitude.size(0) == output.size(-1) &&
          squares.sizes() == magnitude.sizes(),
      kOp,
      "magnitude {} does not fit output {}: expected [out]",
      describe(magnitude),
      describe(output));
  const Tensor leaf = weight_grad == WeightGrad::kAccumulate
                          ? accumulating(kOp, magnitude)
                          : magnitude;
  return (output * (leaf / squares.sqrt())).to(output.scalar_type());
}

std::vector<Tensor> magnitude_linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options) {
  // Biases are added behind the magnitudes.
  std::vector<Tensor> before = biases;
  before.resize(weights.size());
  std::vector<Tensor> after(weights.size());
  LinearOptions inner = options;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (inner.adapters.at(i).magnitude.defined()) {
      inner.adapters[i].magnitude = Tensor();
      std::swap(before[i], after[i]);
    }
  }
  std::vector<Tensor> outputs = linear_group(x, weights, before, inner);
  for (size_t i = 0; i < weights.size(); ++i) {
    const LowRank& adapter = options.adapters[i];
    if (adapter.magnitude.defined())
      outputs[i] = with_magnitude(
          outputs[i],
          adapter.magnitude,
          squares_of(adapter, [&] { return row_squares(weights[i], adapter); }),
          options.weight_grad);
    if (after[i].defined())
      outputs[i] = outputs[i] + after[i];
  }
  return outputs;
}

}  // namespace brigade::ops
