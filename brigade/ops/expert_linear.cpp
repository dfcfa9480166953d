#include "brigade/ops/expert_linear.h"

#include <algorithm>
#include <numeric>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/linear_products.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/rows.h"

namespace brigade::ops {
namespace {

constexpr const char* kExpertLinearOp = "expert_linear";

struct ExpertLinearSaved {
  LinearOptions options;
  const KernelSet* kernels;
  std::vector<int64_t> counts;
  size_t members;  // weights of an expert
  std::vector<int64_t> x_sizes;
  bool x_has_gradient;
  bool trains;  // a weight: what x is kept for
};

// An expert with rows.
struct ExpertRows {
  std::vector<Tensor> weights;
  int64_t begin, count;
  Tensor of(const Tensor& rows) const { return rows.narrow(0, begin, count); }
};

// tensors: the weights, expert after expert.
std::vector<ExpertRows> experts_with_rows(
    at::TensorList tensors,
    const ExpertLinearSaved& saved) {
  std::vector<ExpertRows> result;
  int64_t begin = 0;
  for (size_t e = 0; e < saved.counts.size(); ++e) {
    const auto weights = tensors.slice(e * saved.members, saved.members);
    if (saved.counts[e] > 0)
      result.push_back({weights.vec(), begin, saved.counts[e]});
    begin += saved.counts[e];
  }
  return result;
}

// The columns of an expert's weights among the results, as they lie in memory
// where the first expert's do.
SideBySide columns_of(at::TensorList weights, WeightGroup group) {
  if (auto matrix = as_one_matrix(weights.vec(), group))
    return *matrix;
  SideBySide in_turn;
  for (const Tensor& weight : weights) {
    in_turn.column.push_back(in_turn.columns);
    in_turn.columns += weight.size(0);
  }
  return in_turn;
}

std::vector<Tensor> run_experts(
    const Tensor& x,
    at::TensorList weights,
    const ExpertLinearSaved& saved) {
  const WeightGroup group = saved.options.group;
  const SideBySide columns = columns_of(weights.slice(0, saved.members), group);
  const Tensor buffer = at::empty({x.size(0), columns.columns}, x.options());
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < saved.members; ++i)
    outputs.push_back(slice_of(
        buffer,
        {x.size(0), weights[i].size(0)},
        {columns.columns, 1},
        columns.column[i]));
  std::vector<LinearOperands> products;
  for (const ExpertRows& expert : experts_with_rows(weights, saved)) {
    const Tensor rows = expert.of(x);
    const auto matrix = as_one_matrix(expert.weights, group);
    if (matrix && matrix->column == columns.column) {
      products.push_back({rows, matrix->whole, expert.of(buffer)});
      continue;
    }
    for (size_t i = 0; i < saved.members; ++i)
      products.push_back({rows, expert.weights[i], expert.of(outputs[i])});
  }
  saved.kernels->linears(products);
  return outputs;
}

// The gradients of each expert's results.
std::vector<OutputGrads> grads_of_experts(
    const std::vector<Tensor>& gradients,
    at::TensorList weights,
    const std::vector<ExpertRows>& experts,
    const ExpertLinearSaved& saved) {
  std::vector<Tensor> rows;
  for (size_t i = 0; i < saved.members; ++i)
    rows.push_back(
        gradients[i].defined() ? as_rows(gradients[i])
                               : at::zeros(
                                     {saved.x_sizes[0], weights[i].size(0)},
                                     weights[i].options()));
  std::vector<OutputGrads> result;
  for (const ExpertRows& expert : experts) {
    std::vector<Tensor> parts;
    for (const Tensor& whole : rows)
      parts.push_back(expert.of(whole));
    result.push_back(
        output_grads(parts, expert.weights, saved.options.group, expert.count));
  }
  return result;
}

Tensor input_grad_of_experts(
    const std::vector<OutputGrads>& outputs,
    const std::vector<ExpertRows>& experts,
    const torch::TensorOptions& type,
    const ExpertLinearSaved& saved) {
  const Tensor dx = at::empty(saved.x_sizes, type);
  std::vector<LinearOperands> products;
  for (size_t i = 0; i < experts.size(); ++i) {
    const Tensor part = experts[i].of(dx);
    if (outputs[i].whole)
      products.push_back({part, outputs[i].weights, outputs[i].whole->whole});
    else if (saved.members == 1)
      products.push_back({part, experts[i].weights[0], outputs[i].rows[0]});
    else
      sum_input_grads(part, outputs[i], experts[i].weights, *saved.kernels);
  }
  saved.kernels->linear_input_grads(products);
  return dx;
}

struct ExpertLinearNode : OnceDifferentiable<ExpertLinearNode> {
  static constexpr const char* kName = "expert_linear";

  // tensors: x, the weights, expert after expert.
  static variable_list forward(
      AutogradContext* context,
      at::TensorList tensors,
      const ExpertLinearSaved& saved) {
    // The weights, then x or what it is made of, if needed.
    std::vector<Tensor> kept(tensors.begin() + 1, tensors.end());
    const RemadeInput& input = saved.options.input;
    if (saved.trains && input.make)
      kept.insert(kept.end(), input.from.begin(), input.from.end());
    else if (saved.trains)
      kept.push_back(tensors[0]);
    context->save_for_backward(kept);
    // Saved variables are given back after backward, this is not.
    carry(context, saved).options.input.from.clear();
    return run_experts(as_rows(tensors[0]), tensors.slice(1), saved);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto& saved = carried<ExpertLinearSaved>(context);
    const auto tensors = context->get_saved_variables();
    const size_t count = saved.counts.size() * saved.members;
    const at::TensorList weights = at::TensorList(tensors).slice(0, count);
    // As many as forward's tensors, and what it saves.
    variable_list result(2 + count);
    bool any = false;
    for (const Tensor& gradient : gradients)
      any = any || gradient.defined();
    if (!any)
      return result;
    const auto experts = experts_with_rows(weights, saved);
    const auto outputs = grads_of_experts(gradients, weights, experts, saved);
    if (saved.x_has_gradient) {
      const Observed observed(
          "brigade::expert_linear_backward", gradients, weights.vec());
      result[0] =
          input_grad_of_experts(outputs, experts, weights[0].options(), saved);
    }
    if (!saved.trains)
      return result;
    // Made now: what it is made of may take more memory until later.
    const std::vector<Tensor> from(
        tensors.begin() + static_cast<std::ptrdiff_t>(count), tensors.end());
    const torch::NoGradGuard no_grad;
    const Tensor input = as_rows(input_of(from, saved.options.input));
    if (saved.options.weight_grad == WeightGrad::kReturn) {
      return_weights(outputs, input, weights, saved, result);
      return result;
    }
    const auto accumulate = [outputs, experts, input, kernels = saved.kernels] {
      const torch::NoGradGuard without_grad;
      for (size_t i = 0; i < experts.size(); ++i)
        accumulate_weights(
            outputs[i],
            experts[i].of(input),
            experts[i].weights,
            {},
            kExpertLinearOp,
            *kernels);
    };
    if (saved.options.defer_weight_grad)
      saved.options.defer_weight_grad(accumulate);
    else
      accumulate();
    return result;
  }

 private:
  static void return_weights(
      const std::vector<OutputGrads>& outputs,
      const Tensor& input,
      at::TensorList weights,
      const ExpertLinearSaved& saved,
      variable_list& result) {
    size_t with_rows = 0;
    int64_t begin = 0;
    for (size_t e = 0; e < saved.counts.size(); ++e) {
      const int64_t count = saved.counts[e];
      const Tensor rows = input.narrow(0, begin, count);
      for (size_t i = 0; i < saved.members; ++i) {
        const Tensor& weight = weights[e * saved.members + i];
        if (!weight.requires_grad())
          continue;
        Tensor& gradient = result[1 + e * saved.members + i];
        if (count == 0) {
          gradient = at::zeros_like(weight);
          continue;
        }
        gradient = at::empty(weight.sizes(), weight.options());
        saved.kernels->multiply(
            gradient,
            outputs[with_rows].rows[i].t(),
            rows,
            Destination::kOverwrite);
      }
      with_rows += count > 0 ? 1 : 0;
      begin += count;
    }
  }
};

}  // namespace

std::vector<Tensor> expert_linear(
    const Tensor& x,
    const std::vector<int64_t>& counts,
    const std::vector<std::vector<Tensor>>& weights,
    const LinearOptions& options) {
  const bool accumulates = options.weight_grad == WeightGrad::kAccumulate;
  require(
      x.dim() == 2 && !weights.empty() && counts.size() == weights.size() &&
          x.size(0) ==
              std::accumulate(counts.begin(), counts.end(), int64_t{0}),
      kExpertLinearOp,
      "x {} is not the rows of {} experts, {} of which have weights",
      describe(x),
      counts.size(),
      weights.size());
  require(
      options.adapters.empty() && !options.on_input_grad &&
          (!options.defer_weight_grad || accumulates),
      kExpertLinearOp,
      "adapters, on_input_grad and defer_weight_grad without kAccumulate are "
      "not for experts");
  std::vector<Tensor> tensors{x};
  for (const std::vector<Tensor>& of_expert : weights) {
    for (size_t i = 0; i < of_expert.size(); ++i) {
      check_linear(kExpertLinearOp, x, of_expert[i], {});
      require(
          of_expert.size() == weights[0].size() &&
              of_expert[i].sizes() == weights[0][i].sizes(),
          kExpertLinearOp,
          "weights {} and {} of two experts differ",
          describe(of_expert[i]),
          describe(weights[0][std::min(i, weights[0].size() - 1)]));
      if (accumulates && of_expert[i].requires_grad())
        check_accumulates(kExpertLinearOp, of_expert[i]);
      tensors.push_back(of_expert[i]);
    }
  }
  const bool trains =
      std::any_of(tensors.begin() + 1, tensors.end(), [](const Tensor& each) {
        return each.requires_grad();
      });
  const Observed observed("brigade::expert_linear", tensors);
  return ExpertLinearNode::apply(
      at::TensorList(tensors),
      ExpertLinearSaved{
          options,
          &choose_kernels(kExpertLinearOp, options.kernels, {&x, &tensors[1]}),
          counts,
          weights[0].size(),
          x.sizes().vec(),
          x.requires_grad(),
          trains});
}

}  // namespace brigade::ops
