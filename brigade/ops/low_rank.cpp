#include "brigade/ops/low_rank.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/linear_products.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/rows.h"
#include "brigade/ops/weight_grad.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kLowRankOp = "low_rank_linear";

// What dropout leaves of the input, and of its gradient, for each adapter.
struct Dropped {
  InputDropout dropout;
  Kernels kernels;
  std::vector<uint64_t> keys;  // of each adapter

  bool is_used() const { return dropout.is_used(); }
  void drop(const Tensor& rows, size_t adapter) const {
    drop_elements(rows, dropout, keys[adapter], kernels);
  }
  // The rows themselves without dropout.
  Tensor left_of(const Tensor& rows, size_t adapter) const {
    if (!is_used())
      return rows;
    Tensor left = rows.clone(at::MemoryFormat::Contiguous);
    drop(left, adapter);
    return left;
  }
};

struct LowRankSaved {
  LinearOptions options;
  const KernelSet* kernels;
  // Of each adapter the index of its weight and its scale.
  std::vector<size_t> adapted;
  std::vector<double> scales;
  Dropped dropped;
  size_t weights;
  std::vector<Tensor> biases;  // as many, undefined ones too; of forward
  std::vector<int64_t> x_sizes;
  bool x_has_gradient;
};

// x a^T for each adapter, [rows, rank].
std::vector<Tensor> products_of(
    const Tensor& rows,
    const std::vector<Tensor>& a,
    const LowRankSaved& saved) {
  if (!saved.dropped.is_used())
    return run_linear(
        rows,
        a,
        std::vector<Tensor>(a.size()),
        saved.options.group,
        *saved.kernels);
  std::vector<Tensor> result;
  for (size_t i = 0; i < a.size(); ++i)
    result.push_back(run_linear(
        saved.dropped.left_of(rows, i),
        {a[i]},
        {Tensor()},
        WeightGroup::kSeparate,
        *saved.kernels)[0]);
  return result;
}

// One h for each adapter, [rows, rank].
std::vector<Tensor> scaled_products(
    const Tensor& x,
    const std::vector<Tensor>& a,
    const LowRankSaved& saved) {
  std::vector<Tensor> result = products_of(as_rows(x), a, saved);
  for (size_t i = 0; i < a.size(); ++i)
    result[i].mul_(saved.scales[i]);
  return result;
}

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
    const Kept kept = split(tensors, saved);
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
    const Parts parts = parts_of(outputs, kept, saved);
    std::function<void()> after;
    if (saved.x_has_gradient) {
      const Observed observed(
          "brigade::linear_backward", gradients, kept.weights);
      result[0] =
          input_grad(outputs, kept.weights, saved.x_sizes, *saved.kernels);
      add_input_grads(
          parts, kept, saved, result[0].view({rows, saved.x_sizes.back()}));
      if (saved.options.on_input_grad)
        after = saved.options.on_input_grad(result[0]);
    }
    if (saved.options.weight_grad == WeightGrad::kAccumulate)
      accumulate(parts, kept, saved);
    else
      return_gradients(parts, kept, saved, result);
    if (after)
      after();
    return result;
  }

 private:
  struct Kept {
    std::vector<Tensor> weights;
    std::vector<Tensor> a, b, h;
    std::vector<Tensor> input;  // x, or what it is made of
  };
  // The gradients from which those of a and of b are made.
  struct Parts {
    OutputGrads a;                // of each h, times the scale
    std::vector<Tensor> outputs;  // of each b
  };

  static Kept split(
      const std::vector<Tensor>& tensors,
      const LowRankSaved& saved) {
    auto next = tensors.begin();
    const auto take = [&](size_t count) {
      const auto begin = next;
      next += static_cast<std::ptrdiff_t>(count);
      return std::vector<Tensor>(begin, next);
    };
    const size_t adapters = saved.adapted.size();
    Kept kept;
    kept.weights = take(saved.weights);
    kept.a = take(adapters);
    kept.b = take(adapters);
    kept.h = take(adapters);
    kept.input.assign(next, tensors.end());
    return kept;
  }

  static Parts parts_of(
      const OutputGrads& outputs,
      const Kept& kept,
      const LowRankSaved& saved) {
    Parts parts;
    variable_list of_h;
    for (size_t i = 0; i < kept.b.size(); ++i) {
      const Tensor& dy = outputs.rows[saved.adapted[i]];
      const Tensor dh = at::empty(kept.h[i].sizes(), dy.options());
      saved.kernels->multiply(dh, dy, kept.b[i], Destination::kOverwrite);
      of_h.push_back(dh.mul_(saved.scales[i]));
      parts.outputs.push_back(dy);
    }
    const int64_t rows = parts.outputs.front().size(0);
    parts.a = output_grads(of_h, kept.a, saved.options.group, rows);
    return parts;
  }

  // Adds what the adapters' terms give x's rows.
  static void add_input_grads(
      const Parts& parts,
      const Kept& kept,
      const LowRankSaved& saved,
      Tensor dx) {
    for (size_t i = 0; i < kept.a.size(); ++i) {
      const Tensor& dh = parts.a.rows[i];
      if (!saved.dropped.is_used()) {
        saved.kernels->multiply(dx, dh, kept.a[i], Destination::kAdd);
        continue;
      }
      const Tensor part = at::empty(dx.sizes(), dx.options());
      saved.kernels->multiply(part, dh, kept.a[i], Destination::kOverwrite);
      saved.dropped.drop(part, i);
      dx.add_(part);
    }
  }

  static Tensor input_of(const Kept& kept, const LinearOptions& options) {
    if (!options.input.make)
      return kept.input[0];
    const torch::NoGradGuard no_grad;
    return options.input.make(kept.input);
  }

  static void accumulate_a(
      const OutputGrads& gradients,
      const Tensor& rows,
      const std::vector<Tensor>& a,
      const Dropped& dropped,
      const KernelSet& kernels) {
    if (!dropped.is_used()) {
      accumulate_weights(gradients, rows, a, {}, kLowRankOp, kernels);
      return;
    }
    for (size_t i = 0; i < a.size(); ++i)
      accumulate_weights(
          {.rows = {gradients.rows[i]}, .whole = {}, .weights = {}},
          dropped.left_of(rows, i),
          {a[i]},
          {},
          kLowRankOp,
          kernels);
  }

  static void
  accumulate(const Parts& parts, const Kept& kept, const LowRankSaved& saved) {
    // Made now: what it is made of may take more memory until then.
    const auto compute = [parts,
                          input = input_of(kept, saved.options),
                          a = kept.a,
                          b = kept.b,
                          h = kept.h,
                          dropped = saved.dropped,
                          kernels = saved.kernels] {
      const torch::NoGradGuard no_grad;
      accumulate_a(parts.a, as_rows(input), a, dropped, *kernels);
      for (size_t i = 0; i < b.size(); ++i) {
        if (b[i].requires_grad())
          kernels->linear_weight_grad(
              accumulation_target(kLowRankOp, b[i]), parts.outputs[i], h[i]);
      }
    };
    if (saved.options.defer_weight_grad)
      saved.options.defer_weight_grad(compute);
    else
      compute();
  }

  static void return_gradients(
      const Parts& parts,
      const Kept& kept,
      const LowRankSaved& saved,
      variable_list& result) {
    const Tensor rows = as_rows(input_of(kept, saved.options));
    const auto product =
        [&](const Tensor& weight, const Tensor& gradient, const Tensor& input) {
          if (!weight.requires_grad())
            return Tensor();
          Tensor into = at::empty(weight.sizes(), weight.options());
          saved.kernels->multiply(
              into, gradient.t(), input, Destination::kOverwrite);
          return into;
        };
    const size_t first = 1 + saved.weights;
    const size_t adapters = kept.a.size();
    for (size_t i = 0; i < adapters; ++i) {
      result[first + i] =
          product(kept.a[i], parts.a.rows[i], saved.dropped.left_of(rows, i));
      result[first + adapters + i] =
          product(kept.b[i], parts.outputs[i], kept.h[i]);
    }
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
