#include "brigade/ops/row_magnitude.h"

#include <algorithm>
#include <utility>

#include "brigade/base/check.h"
#include "brigade/ops/adapted_weight.h"
#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/weight_grad.h"

namespace brigade::ops {
namespace {

// What dropout leaves of a linear's input, for one adapter.
struct InputMask {
  InputDropout dropout;
  uint64_t key = 0;
  Kernels kernels = Kernels::kAuto;

  // x: [.., in], of as many rows as there are token_keys.
  Tensor left_of(const Tensor& x) const {
    Tensor left = x.clone(at::MemoryFormat::Contiguous);
    drop_elements(left.view({-1, x.size(-1)}), dropout, key, kernels);
    return left.div_(1 - dropout.rate);
  }
};

// Linear in x: its gradient loses what x lost.
struct MaskedInput : OnceDifferentiable<MaskedInput> {
  static constexpr const char* kName = "input_dropout";

  static Tensor
  forward(AutogradContext* context, const Tensor& x, const InputMask& mask) {
    return carry(context, mask).left_of(x);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    if (!gradients[0].defined())
      return {Tensor(), Tensor()};
    return {carried<InputMask>(context).left_of(gradients[0]), Tensor()};
  }
};

}  // namespace

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

DroppedTerms dropped_terms(
    const Tensor& x,
    const Tensor& weight,
    const LowRank& adapter,
    const LinearOptions& options) {
  BRIGADE_ASSERT(!options.on_input_grad);
  const InputMask mask{options.dropout, adapter.key, options.kernels};
  LinearOptions inner = options;
  inner.dropout = {};
  inner.adapters = {};
  // Neither of the two inputs is kept: both are made of x again.
  const RemadeInput& given = options.input;
  inner.input.from = given.make ? given.from : std::vector<Tensor>{x};
  const auto make =
      given.make ? given.make
                 : [](const std::vector<Tensor>& from) { return from[0]; };
  inner.input.make = [make, mask](const std::vector<Tensor>& from) {
    const Tensor whole = make(from);
    return whole - mask.left_of(whole);
  };
  const Tensor left = MaskedInput::apply(x, mask);
  DroppedTerms terms;
  terms.passed_by = linear(x - left, weight, {}, inner);
  inner.input.make = [make, mask](const std::vector<Tensor>& from) {
    return mask.left_of(make(from));
  };
  inner.adapters = {adapter};
  inner.adapters[0].magnitude = Tensor();
  terms.scaled = linear(left, weight, {}, inner);
  return terms;
}

namespace {

// magnitude_linear_group() with dropout: linear by linear.
std::vector<Tensor> dropped_linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options) {
  std::vector<Tensor> outputs;
  LinearOptions inner = options;
  // Each would say a part of the gradient.
  inner.on_input_grad = nullptr;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Tensor& weight = weights[i];
    const Tensor bias = biases.empty() ? Tensor() : biases[i];
    const LowRank& adapter = options.adapters.at(i);
    if (!adapter.magnitude.defined()) {
      inner.adapters = {adapter};
      outputs.push_back(linear(x, weight, bias, inner));
      continue;
    }
    const DroppedTerms terms = dropped_terms(x, weight, adapter, inner);
    outputs.push_back(
        terms.passed_by +
        with_magnitude(
            terms.scaled,
            adapter.magnitude,
            squares_of(adapter, [&] { return row_squares(weight, adapter); }),
            options.weight_grad));
    if (bias.defined())
      outputs.back() = outputs.back() + bias;
  }
  return outputs;
}

}  // namespace

std::vector<Tensor> magnitude_linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options) {
  if (options.dropout.is_used())
    return dropped_linear_group(x, weights, biases, options);
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
