#include "brigade/ops/low_rank.h"

#include <algorithm>
#include <cstddef>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/linear_products.h"
#include "brigade/ops/low_rank_products.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/rows.h"
#include "brigade/ops/weight_grad.h"

namespace brigade::ops {
namespace {

struct LowRankNode : OnceDifferentiable<LowRankNode> {
  static constexpr const char* kName = kLowRankOp;

  // tensors: x, the weights, each a, each b.
  static variable_list forward(
      AutogradContext* context,
      at::TensorList tensors,
      const LowRankSaved& saved) {
    const Tensor& x = tensors[0];
    const size_t adapters = saved.adapted.size();
    const auto first = tensors.begin() + 1;
    const auto end_of_weights =
        first + static_cast<std::ptrdiff_t>(saved.weights);
    const auto end_of_a =
        end_of_weights + static_cast<std::ptrdiff_t>(adapters);
    const std::vector<Tensor> weights(first, end_of_weights);
    const std::vector<Tensor> a(end_of_weights, end_of_a);
    const std::vector<Tensor> b(
        end_of_a, end_of_a + static_cast<std::ptrdiff_t>(adapters));
    std::vector<Tensor> outputs = run_linear(
        x, weights, saved.biases, saved.options.group, *saved.kernels);
    const std::vector<Tensor> h = scaled_products(x, a, saved);
    for (size_t i = 0; i < adapters; ++i)
      saved.kernels->multiply(
          as_rows(outputs[saved.adapted[i]]),
          h[i],
          b[i].t(),
          Destination::kAdd);

    // The weights, each a, b and h, then x or what it is made of.
    std::vector<Tensor> kept(
        first,
        first + static_cast<std::ptrdiff_t>(saved.weights + 2 * adapters));
    kept.insert(kept.end(), h.begin(), h.end());
    if (saved.options.input.make)
      kept.insert(
          kept.end(),
          saved.options.input.from.begin(),
          saved.options.input.from.end());
    else
      kept.push_back(x);
    context->save_for_backward(kept);
    // Saved variables are given back after backward, this is not.
    LowRankSaved& carried_on = carry(context, saved);
    carried_on.options.input.from.clear();
    carried_on.biases.clear();
    return outputs;
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const LowRankSaved& saved = carried<LowRankSaved>(context);
    const auto tensors = context->get_saved_variables();
    const LowRankKept kept = split_low_rank(tensors, saved);
    const size_t adapters = saved.adapted.size();
    // As many as forward's arguments.
    variable_list result(1 + saved.weights + 2 * adapters + 1);
    if (std::none_of(gradients.begin(), gradients.end(), [](const auto& each) {
          return each.defined();
        }))
      return result;
    const int64_t rows =
        c10::multiply_integers(saved.x_sizes.begin(), saved.x_sizes.end() - 1);
    const OutputGrads outputs =
        output_grads(gradients, kept.weights, saved.options.group, rows);
    const LowRankParts parts = low_rank_parts(outputs, kept, saved);
    std::function<void()> after;
    if (saved.x_has_gradient) {
      const Observed observed(
          "brigade::linear_backward", gradients, kept.weights);
      result[0] =
          input_grad(outputs, kept.weights, saved.x_sizes, *saved.kernels);
      add_low_rank_input_grads(
          parts, kept, saved, result[0].view({rows, saved.x_sizes.back()}));
      if (saved.options.on_input_grad)
        after = saved.options.on_input_grad(result[0]);
    }
    if (saved.options.weight_grad == WeightGrad::kAccumulate)
      accumulate_low_rank(parts, kept, saved);
    else
      return_low_rank(parts, kept, saved, result);
    if (after)
      after();
    return result;
  }
};

void check_low_rank(
    const Tensor& weight,
    const Tensor& bias,
    const LowRank& adapter,
    WeightGrad weight_grad) {
  require(
      !weight.requires_grad() && !(bias.defined() && bias.requires_grad()),
      kLowRankOp,
      "weight {} of a group with adapters wants a gradient; freeze it and its "
      "bias",
      describe(weight));
  if (!adapter.a.defined())
    return;
  require(
      adapter.a.dim() == 2 && adapter.b.dim() == 2 &&
          adapter.a.size(1) == weight.size(1) &&
          adapter.b.size(0) == weight.size(0) &&
          adapter.a.size(0) == adapter.b.size(1) &&
          adapter.a.scalar_type() == weight.scalar_type() &&
          adapter.b.scalar_type() == weight.scalar_type(),
      kLowRankOp,
      "a {} and b {} do not fit weight {}: expected [rank, in] and [out, rank] "
      "of its dtype",
      describe(adapter.a),
      describe(adapter.b),
      describe(weight));
  for (const Tensor& each : {adapter.a, adapter.b}) {
    if (weight_grad == WeightGrad::kAccumulate && each.requires_grad())
      check_accumulates(kLowRankOp, each);
  }
}

}  // namespace

bool has_low_rank(const std::vector<LowRank>& adapters) {
  return std::any_of(
      adapters.begin(), adapters.end(), [](const LowRank& adapter) {
        return adapter.a.defined();
      });
}

std::vector<Tensor> low_rank_linear_group(
    const Tensor& x,
    const std::vector<Tensor>& weights,
    const std::vector<Tensor>& biases,
    const LinearOptions& options) {
  require(
      options.adapters.size() == weights.size(),
      kLowRankOp,
      "a group of {} weights has {} adapters",
      weights.size(),
      options.adapters.size());
  LowRankSaved saved{
      .options = options,
      .kernels =
          &choose_kernels(kLowRankOp, options.kernels, {&x, &weights[0]}),
      .adapted = {},
      .scales = {},
      .dropped = {options.dropout, options.kernels, {}},
      .weights = weights.size(),
      .biases = std::vector<Tensor>(weights.size()),
      .x_sizes = x.sizes().vec(),
      .x_has_gradient = x.requires_grad()};
  // They travel as arguments.
  saved.options.adapters.clear();
  saved.options.dropout = {};
  std::vector<Tensor> tensors{x};
  std::vector<Tensor> b;
  tensors.insert(tensors.end(), weights.begin(), weights.end());
  for (size_t i = 0; i < weights.size(); ++i) {
    const LowRank& adapter = options.adapters[i];
    if (!biases.empty())
      saved.biases[i] = biases[i];
    check_linear(kLowRankOp, x, weights[i], saved.biases[i]);
    check_low_rank(weights[i], saved.biases[i], adapter, options.weight_grad);
    if (!adapter.a.defined())
      continue;
    saved.adapted.push_back(i);
    saved.scales.push_back(
        options.dropout.is_used() ? adapter.scale / (1 - options.dropout.rate)
                                  : adapter.scale);
    saved.dropped.keys.push_back(adapter.key);
    tensors.push_back(adapter.a);
    b.push_back(adapter.b);
  }
  tensors.insert(tensors.end(), b.begin(), b.end());
  const Observed observed("brigade::linear", tensors);
  return LowRankNode::apply(at::TensorList(tensors), saved);
}

}  // namespace brigade::ops
