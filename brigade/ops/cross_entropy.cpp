#include "brigade/ops/cross_entropy.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <vector>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/observed.h"
#include "brigade/ops/once_differentiable.h"
#include "brigade/ops/rows.h"
#include "brigade/ops/soft_targets.h"

namespace brigade::ops {
namespace {

constexpr const char* kCrossEntropyOp = "linear_cross_entropy";

int64_t valid_rows(const Tensor& weight, const CrossEntropyOptions& options) {
  return options.valid_rows.value_or(weight.size(0));
}

void check_teacher(
    const SoftTargets& teacher,
    int64_t tokens,
    int64_t vocab_size) {
  require(
      teacher.ids.dim() == 2 && teacher.ids.size(0) == tokens &&
          teacher.ids.size(1) > 0 &&
          teacher.ids.sizes() == teacher.log_probs.sizes() &&
          teacher.ids.scalar_type() == torch::kLong,
      kCrossEntropyOp,
      "a teacher's ids {} and log-probabilities {} do not fit: expected int64 "
      "and float32 [{}, k]",
      describe(teacher.ids),
      describe(teacher.log_probs),
      tokens);
  if (!teacher.ids.device().is_cpu() || tokens == 0)
    return;
  const auto highest = teacher.ids.max().item<int64_t>();
  if (highest >= vocab_size || teacher.ids.min().item<int64_t>() < 0)
    throw DataError(fmt::format(
        "[{}] the teacher's ids go to {}, outside the vocabulary of {}; has it "
        "another tokenizer?",
        kCrossEntropyOp,
        highest,
        vocab_size));
}

void check_cross_entropy(
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
      kCrossEntropyOp,
      "hidden {}, weight {} and targets {} do not fit: expected [N, C] and "
      "[V, C] of one dtype and int64 [N]",
      describe(hidden),
      describe(weight),
      describe(targets));
  require(
      valid_rows(weight, options) >= 0 &&
          valid_rows(weight, options) <= weight.size(0),
      kCrossEntropyOp,
      "valid_rows {} is not in [0, {}]",
      valid_rows(weight, options),
      weight.size(0));
  const int64_t vocab_size = options.vocab_size.value_or(
      options.vocab_begin + valid_rows(weight, options));
  if (options.teacher)
    check_teacher(*options.teacher, targets.size(0), vocab_size);
  // Reading values of another device would wait for it.
  if (!targets.device().is_cpu())
    return;
  const Tensor outside = ((targets < 0) | (targets >= vocab_size)) &
                         (targets != options.ignore_index);
  if (targets.numel() == 0 || !outside.any().item<bool>())
    return;
  const auto row = outside.to(torch::kInt).argmax().item<int64_t>();
  throw DataError(fmt::format(
      "[{}] the target of row {} is {}, outside the vocabulary of {}; was the "
      "data made by another tokenizer?",
      kCrossEntropyOp,
      row,
      targets[row].item<int64_t>(),
      vocab_size));
}

struct Gradients {
  Tensor hidden;  // [N, C], dense
  Tensor weight;  // what the products add to; undefined: not wanted
  bool wanted() const { return hidden.defined() || weight.defined(); }
};

// Whether other ranks hold a part of the vocabulary.
bool is_shared(const Tensor& weight, const CrossEntropyOptions& options) {
  const int64_t end = options.vocab_begin + valid_rows(weight, options);
  return options.vocab_begin > 0 || end < options.vocab_size.value_or(end);
}

// The losses of a chunk's tokens; its rows of the gradients that are defined.
// factor: [rows], the gradient of each token's loss.
Tensor chunk_losses(
    const KernelSet& kernels,
    const HeadInputs& inputs,
    const Tensor& counted,
    const CrossEntropyOptions& options,
    const Tensor& factor,
    const Gradients& gradients) {
  const int64_t rows = inputs.hidden.size(0);
  const auto type = inputs.hidden.options().dtype(wide_dtype(inputs.hidden));
  HeadStatistics statistics{
      at::empty({rows}, type), at::empty({inputs.teacher ? 4 : 2, rows}, type)};
  const auto chunk = kernels.make_head_chunk(inputs, statistics);
  if (options.reduce_max)
    options.reduce_max(statistics.maxima);
  chunk->sum_exponentials();
  if (options.reduce_sum)
    options.reduce_sum(statistics.sums);
  Tensor losses =
      statistics.sums[0].log() + statistics.maxima - statistics.sums[1];
  if (inputs.teacher)
    losses = mixed_losses(*inputs.teacher, losses, statistics.sums);
  if (gradients.wanted())
    chunk->add_gradients(factor, gradients.hidden, gradients.weight);
  return losses.masked_fill(counted.bitwise_not(), 0);
}

// What the teacher says of these tokens, its ids as HeadInputs has them.
std::optional<SoftTargets> local_teacher(
    const CrossEntropyOptions& options,
    int64_t begin,
    int64_t numel,
    int64_t valid) {
  if (!options.teacher)
    return std::nullopt;
  SoftTargets teacher = *options.teacher;
  teacher.log_probs = teacher.log_probs.narrow(0, begin, numel);
  const Tensor local =
      teacher.ids.narrow(0, begin, numel) - options.vocab_begin;
  teacher.ids = local.masked_fill((local < 0) | (local >= valid), -1);
  return teacher;
}

struct HeadCall {
  Tensor hidden;
  Tensor weight;
  Tensor targets;
  const CrossEntropyOptions& options;
};

// Computes the head chunk by chunk and hands each chunk's losses, in order, to
// `take`. factor: [N], the gradient of each token's loss; undefined where no
// gradient is wanted.
void for_each_chunk(
    const HeadCall& call,
    const Tensor& factor,
    const Gradients& gradients,
    const std::function<void(const Tensor& losses)>& take) {
  const CrossEntropyOptions& options = call.options;
  const KernelSet& kernels =
      choose_kernels(kCrossEntropyOp, options.kernels, {&call.hidden});
  const int64_t valid = valid_rows(call.weight, options);
  const int64_t tokens = call.hidden.size(0);
  const int64_t rows =
      options.row_chunk > 0
          ? options.row_chunk
          : kernels.head_rows_at_once(
                {.tokens = tokens,
                 .columns = call.hidden.size(1),
                 .dtype = call.hidden.scalar_type(),
                 .keep_logits = options.keep_logits,
                 .is_shared = is_shared(call.weight, options),
                 .wants_gradients = gradients.wanted(),
                 .needs_aten = options.logit_soft_cap.has_value(),
                 .has_teacher = options.teacher.has_value()});
  const Tensor table = as_rows(call.weight);
  const Tensor all = as_rows(call.hidden);
  for (int64_t begin = 0; begin < tokens; begin += rows) {
    const int64_t numel = std::min(rows, tokens - begin);
    const Tensor target = call.targets.narrow(0, begin, numel);
    const Tensor local = target - options.vocab_begin;
    const Tensor counted = target != options.ignore_index;
    const Tensor elsewhere =
        (local < 0) | (local >= valid) | counted.bitwise_not();
    const HeadInputs inputs{
        .hidden = all.narrow(0, begin, numel),
        .weight = table,
        .targets = local.masked_fill(elsewhere, -1),
        .valid_rows = valid,
        .logit_soft_cap = options.logit_soft_cap,
        .teacher = local_teacher(options, begin, numel, valid),
        .keep_logits =
            gradients.wanted() ? options.keep_logits : KeepLogits::kNever};
    const Gradients part{
        gradients.hidden.defined() ? gradients.hidden.narrow(0, begin, numel)
                                   : Tensor(),
        gradients.weight};
    take(chunk_losses(
        kernels,
        inputs,
        counted,
        options,
        factor.defined() ? factor.narrow(0, begin, numel) : factor,
        part));
  }
}

// What the objective makes of all tokens' losses, for which the head is
// computed once, and its gradients, for which it is computed again.
Tensor objective_in_chunks(
    const HeadCall& call,
    double gradient_scale,
    const Gradients& gradients) {
  const auto type = call.hidden.options().dtype(wide_dtype(call.hidden));
  std::vector<Tensor> losses{torch::zeros({0}, type)};
  for_each_chunk(
      call, {}, {}, [&](const Tensor& chunk) { losses.push_back(chunk); });
  const Objective objective = call.options.objective(torch::cat(losses));
  if (gradients.wanted()) {
    const Tensor factor =
        (objective.gradient.to(type.dtype()) * gradient_scale)
            .masked_fill(call.targets == call.options.ignore_index, 0);
    for_each_chunk(call, factor, gradients, [](const Tensor& /*losses*/) {});
  }
  return objective.value.to(type.dtype());
}

// The loss; the gradients are for an incoming gradient of gradient_scale.
Tensor loss_in_chunks(
    const HeadCall& call,
    double gradient_scale,
    const Gradients& gradients) {
  if (call.options.objective)
    return objective_in_chunks(call, gradient_scale, gradients);
  const auto dtype = wide_dtype(call.hidden);
  Tensor factor;
  if (gradients.wanted())
    factor =
        (call.targets != call.options.ignore_index).to(dtype) * gradient_scale;
  Tensor loss = torch::zeros({}, call.hidden.options().dtype(dtype));
  for_each_chunk(call, factor, gradients, [&](const Tensor& losses) {
    loss += losses.sum();
  });
  return loss;
}

struct CrossEntropySaved {
  CrossEntropyOptions options;
  Gradients gradients;
};

// Checks the gradient that arrives for the loss, where that takes no waiting.
void check_incoming(
    const Tensor& incoming,
    const CrossEntropyOptions& options) {
  if (!options.known_gradient || !incoming.device().is_cpu())
    return;
  const auto value = incoming.item<double>();
  require(
      value == *options.known_gradient,
      kCrossEntropyOp,
      "known_gradient was {}, but backward received {}; leave it unset "
      "where the incoming gradient is not known",
      *options.known_gradient,
      value);
}

// A gradient that was computed for an incoming one of 1.
Tensor scaled(const Tensor& gradient, const Tensor& incoming) {
  if (!incoming.device().is_cpu())
    return (gradient.to(wide_dtype(gradient)) * incoming)
        .to(gradient.scalar_type());
  const auto value = incoming.item<double>();
  return value == 1.0 ? gradient : gradient * value;
}

struct LinearCrossEntropy : OnceDifferentiable<LinearCrossEntropy> {
  static constexpr const char* kName = "linear_cross_entropy";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& hidden,
      const Tensor& weight,
      const Tensor& targets,
      const CrossEntropyOptions& options) {
    Gradients& gradients =
        carry(context, CrossEntropySaved{options, {}}).gradients;
    const bool straight = options.weight_grad == WeightGrad::kAccumulate &&
                          options.known_gradient.has_value();
    if (hidden.requires_grad())
      gradients.hidden = at::empty(hidden.sizes(), hidden.options());
    if (weight.requires_grad())
      gradients.weight =
          straight
              ? accumulation_target(kCrossEntropyOp, weight)
              // Dense rows, as the kernels write them: not the weight's
              // own strides, which may be those of a transposed view.
              : torch::zeros(
                    weight.sizes(), weight.options().dtype(wide_dtype(weight)));
    context->save_for_backward({weight});
    return loss_in_chunks(
        {hidden, weight, targets, options},
        options.known_gradient.value_or(1.0),
        gradients);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list incoming) {
    auto& saved = carried<CrossEntropySaved>(context);
    const CrossEntropyOptions& options = saved.options;
    Gradients& gradients = saved.gradients;
    const Tensor weight = context->get_saved_variables()[0];
    variable_list result(4);
    if (!incoming[0].defined())
      return result;
    check_incoming(incoming[0], options);
    require(
        gradients.hidden.defined() || gradients.weight.defined(),
        kCrossEntropyOp,
        "backward was called twice; the gradient is made in forward and kept "
        "for one backward");
    // Known gradients were there in forward already.
    const auto finished = [&](const Tensor& gradient) {
      return options.known_gradient ? gradient : scaled(gradient, incoming[0]);
    };
    if (gradients.hidden.defined())
      result[0] = finished(gradients.hidden);
    if (gradients.weight.defined()) {
      if (options.weight_grad == WeightGrad::kReturn)
        result[1] = finished(gradients.weight).to(weight.scalar_type());
      else if (!options.known_gradient)
        accumulation_target(kCrossEntropyOp, weight)
            .add_(finished(gradients.weight));
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
  check_cross_entropy(hidden, weight, targets, options);
  const Observed observed(
      "brigade::linear_cross_entropy", hidden, weight, targets);
  Gradients none;
  if (!torch::GradMode::is_enabled() ||
      (!hidden.requires_grad() && !weight.requires_grad()))
    return loss_in_chunks(
        {hidden.detach(), weight.detach(), targets, options}, 1.0, none);
  if (options.weight_grad == WeightGrad::kAccumulate && weight.requires_grad())
    check_accumulates(kCrossEntropyOp, weight);
  return LinearCrossEntropy::apply(hidden, weight, targets, options);
}

}  // namespace brigade::ops
