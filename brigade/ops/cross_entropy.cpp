#include "brigade/ops/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/linear.h"

namespace brigade::ops {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kOp = "linear_cross_entropy";
constexpr int64_t kDefaultRowChunk = 256;

int64_t valid_rows(const Tensor& weight, const CrossEntropyOptions& options) {
  return options.valid_rows.value_or(weight.size(0));
}

void check(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    const CrossEntropyOptions& options) {
  require(
      hidden.dim() == 2 && weight.dim() == 2 && targets.dim() == 1 &&
          hidden.size(1) == weight.size(1) &&
          targets.size(0) == hidden.size(0) &&
          targets.scalar_type() == torch::kLong &&
          hidden.scalar_type() == weight.scalar_type(),
      kOp,
      "hidden {}, weight {} and targets {} do not fit: expected [N, C] and "
      "[V, C] of one dtype and int64 [N]",
      describe(hidden),
      describe(weight),
      describe(targets));
  require(
      valid_rows(weight, options) >= 0 &&
          valid_rows(weight, options) <= weight.size(0),
      kOp,
      "valid_rows {} is not in [0, {}]",
      valid_rows(weight, options),
      weight.size(0));
  const int64_t vocab_size = options.vocab_size.value_or(
      options.vocab_begin + valid_rows(weight, options));
  const Tensor outside = ((targets < 0) | (targets >= vocab_size)) &
                         (targets != options.ignore_index);
  if (targets.numel() == 0 || !outside.any().item<bool>())
    return;
  const auto row = outside.to(torch::kInt).argmax().item<int64_t>();
  throw DataError(fmt::format(
      "[{}] the target of row {} is {}, outside the vocabulary of {}; was the "
      "data made by another tokenizer?",
      kOp,
      row,
      targets[row].item<int64_t>(),
      vocab_size));
}

struct Gradients {
  Tensor hidden;  // [N, C]
  Tensor weight;  // what the products add to; undefined: not wanted
};

// Sums the losses; adds to the gradients (for an incoming gradient of 1) those
// that are defined.
Tensor loss_in_chunks(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    const CrossEntropyOptions& options,
    double gradient_scale,
    Gradients& gradients) {
  const int64_t chunk =
      options.row_chunk > 0 ? options.row_chunk : kDefaultRowChunk;
  const int64_t valid = valid_rows(weight, options);
  Tensor loss = torch::zeros({}, torch::kFloat);
  for (int64_t begin = 0; begin < hidden.size(0); begin += chunk) {
    const int64_t numel = std::min(chunk, hidden.size(0) - begin);
    const Tensor x = hidden.narrow(0, begin, numel);
    const Tensor target = targets.narrow(0, begin, numel);
    Tensor logits = torch::matmul(x, weight.t()).to(torch::kFloat);
    if (valid < weight.size(0))
      logits.narrow(1, valid, weight.size(0) - valid)
          .fill_(-std::numeric_limits<float>::infinity());
    Tensor maxima = logits.amax(1);
    if (options.reduce_max)
      options.reduce_max(maxima);
    const Tensor local = target - options.vocab_begin;
    const Tensor mine = (local >= 0) & (local < valid);
    const Tensor index = torch::where(mine, local, torch::zeros_like(local));
    Tensor sums = torch::empty({2, numel}, torch::kFloat);
    // Masked, not multiplied: a rank of padding alone has -infinity here.
    sums[1].copy_(logits.gather(1, index.unsqueeze(1))
                      .squeeze(1)
                      .masked_fill(mine.logical_not(), 0));
    logits.sub_(maxima.unsqueeze(1)).exp_();
    sums[0].copy_(logits.sum(1));
    if (options.reduce_sum)
      options.reduce_sum(sums);
    const Tensor counted = target != options.ignore_index;
    loss += ((sums[0].log() + maxima - sums[1]) * counted).sum();
    if (!gradients.hidden.defined() && !gradients.weight.defined())
      continue;
    const Tensor factor = counted * gradient_scale;
    logits.mul_((factor / sums[0]).unsqueeze(1));
    logits.scatter_add_(
        1, index.unsqueeze(1), (-factor * mine).unsqueeze(1).to(torch::kFloat));
    const Tensor dlogits = logits.to(x.scalar_type());
    if (gradients.hidden.defined())
      gradients.hidden.narrow(0, begin, numel)
          .copy_(linear_backward_input(dlogits, weight));
    if (gradients.weight.defined())
      linear_backward_weight(dlogits, x, gradients.weight);
  }
  return loss;
}

struct Saved {
  CrossEntropyOptions options;
  Gradients gradients;
};

struct LinearCrossEntropy : torch::autograd::Function<LinearCrossEntropy> {
  static Tensor forward(
      AutogradContext* context,
      const Tensor& hidden,
      const Tensor& weight,
      const Tensor& targets,
      const CrossEntropyOptions& options) {
    Gradients& gradients = carry(context, Saved{options, {}}).gradients;
    const bool straight = options.weight_grad == WeightGrad::kAccumulate &&
                          options.known_gradient.has_value();
    if (hidden.requires_grad())
      gradients.hidden = torch::empty_like(hidden);
    if (weight.requires_grad())
      gradients.weight =
          straight ? accumulation_target(kOp, weight)
                   : torch::zeros_like(
                         weight, weight.options().dtype(torch::kFloat));
    context->save_for_backward({weight});
    return loss_in_chunks(
        hidden,
        weight,
        targets,
        options,
        options.known_gradient.value_or(1.0),
        gradients);
  }

  static variable_list backward(
      AutogradContext* context,
      variable_list incoming) {
    auto& [options, gradients] = carried<Saved>(context);
    const Tensor weight = context->get_saved_variables()[0];
    variable_list result(4);
    if (!incoming[0].defined())
      return result;
    const auto incoming_value = incoming[0].item<double>();
    const double computed_for = options.known_gradient.value_or(1.0);
    require(
        !options.known_gradient || incoming_value == computed_for,
        kOp,
        "known_gradient was {}, but backward received {}; leave it unset "
        "where the incoming gradient is not known",
        computed_for,
        incoming_value);
    require(
        gradients.hidden.defined() || gradients.weight.defined(),
        kOp,
        "backward was called twice; the gradient is made in forward and kept "
        "for one backward");
    const double scale = incoming_value / computed_for;
    if (gradients.hidden.defined())
      result[0] = scale == 1.0 ? gradients.hidden : gradients.hidden * scale;
    if (gradients.weight.defined()) {
      if (options.weight_grad == WeightGrad::kReturn)
        result[1] = gradients.weight.mul_(scale).to(weight.scalar_type());
      else if (!options.known_gradient)
        accumulation_target(kOp, weight).add_(gradients.weight, scale);
    }
    gradients = {};
    return result;
  }
};

}  // namespace

Tensor linear_cross_entropy(
    const Tensor& hidden,
    const Tensor& weight,
    const Tensor& targets,
    const CrossEntropyOptions& options) {
  check(hidden, weight, targets, options);
  Gradients none;
  if (!torch::GradMode::is_enabled() ||
      (!hidden.requires_grad() && !weight.requires_grad()))
    return loss_in_chunks(
        hidden.detach(), weight.detach(), targets, options, 1.0, none);
  if (options.weight_grad == WeightGrad::kAccumulate && weight.requires_grad())
    check_accumulates(kOp, weight);
  return LinearCrossEntropy::apply(hidden, weight, targets, options);
}

}  // namespace brigade::ops
