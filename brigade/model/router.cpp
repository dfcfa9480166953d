#include "brigade/model/router.h"

#include <utility>

#include "brigade/ops/kernel_set.h"
#include "brigade/tensor_parallel/mappings.h"

namespace brigade {

using torch::Tensor;

namespace {

bool divides_tokens(const TensorParallel& parallel) {
  return parallel.tokens == TokenLayout::kSharded && parallel.size() > 1;
}

}  // namespace

Router::Router(
    torch::nn::Module& parent,
    ModelContextPtr context,
    const ExpertsDescription& description,
    const ParameterSource& source)
    : context_(std::move(context)),
      description_(description),
      gate_(parent.register_module("gate", source.make("gate"))) {}

Tensor Router::route(
    const Tensor& x,
    const ExpertInputs& inputs,
    KeptRouting& kept) const {
  const RouterDescription& router = description_.router;
  const Tensor logits =
      gate_->narrow_product(*context_, x.to(ops::wide_dtype(x)));
  const bool is_softmax = router.score == RouterScore::kSoftmax;
  const Tensor scores =
      is_softmax ? torch::softmax(logits, -1) : torch::sigmoid(logits);
  if (!kept.experts.defined())
    kept.experts = ops::choose_experts(
        gate_->score_bias.defined() ? scores.detach() + gate_->score_bias
                                    : scores,
        {.per_token = description_.per_token,
         .groups = router.groups,
         .chosen_groups = router.chosen_groups});
  Tensor weights = scores.gather(1, kept.experts);
  if (router.normalises) {
    // A sum of softmax's best is never zero.
    const double epsilon = is_softmax ? 0 : 1e-20;
    weights = weights / (weights.sum(-1, /*keepdim=*/true) + epsilon);
  }
  if (router.scale != 1.0)
    weights = weights * router.scale;
  if (!inputs.has_loss.defined() || !torch::GradMode::is_enabled())
    return weights;
  const Tensor added = losses(logits, scores, inputs, kept);
  return added.defined() ? ops::attach_loss(weights, added) : weights;
}

Tensor Router::squares() const {
  return gate_->weight.detach().to(torch::kDouble).square().sum();
}

Tensor Router::losses(
    const Tensor& logits,
    const Tensor& scores,
    const ExpertInputs& inputs,
    KeptRouting& kept) const {
  const RouterLosses& weight = context_->router_losses;
  const TensorParallel& parallel = context_->tensor_parallel;
  const int64_t tokens = scores.size(0);
  const Tensor has_loss = own_tokens(parallel, inputs.has_loss);
  const int64_t first = divides_tokens(parallel) ? parallel.rank() * tokens : 0;
  Tensor total;
  if (weight.balance > 0) {
    const int64_t tokens_of_sequence =
        inputs.has_loss.size(0) / inputs.sequences;
    const Tensor sequence =
        torch::arange(first, first + tokens, kept.experts.options())
            .floor_divide(tokens_of_sequence);
    if (!kept.load.defined())
      kept.load = load_of(kept.experts, sequence, has_loss, inputs.sequences)
                      .to(scores.scalar_type());
    const Tensor shares = description_.router.score == RouterScore::kSoftmax
                              ? scores
                              : scores / scores.sum(-1, /*keepdim=*/true);
    total =
        (shares * kept.load.index_select(0, sequence) * has_loss.unsqueeze(1))
            .sum() *
        (weight.balance * static_cast<double>(description_.count));
  }
  if (weight.z > 0) {
    const Tensor squares =
        (torch::logsumexp(logits, -1).square() * has_loss).sum() * weight.z;
    total = total.defined() ? total + squares : squares;
  }
  return total;
}

Tensor Router::load_of(
    const Tensor& experts,
    const Tensor& sequence,
    const Tensor& has_loss,
    int64_t sequences) const {
  const torch::NoGradGuard no_grad;
  const int64_t count = description_.count;
  const Tensor kept = has_loss.nonzero().flatten();
  const Tensor of = sequence.index_select(0, kept);
  // A row per sequence: choices of each expert, and tokens behind them.
  const Tensor choices =
      (experts.index_select(0, kept) + of.unsqueeze(1) * (count + 1)).flatten();
  const Tensor tokens = of * (count + 1) + count;
  const Tensor counts =
      torch::bincount(
          torch::cat({choices, tokens}), {}, sequences * (count + 1))
          .to(torch::kFloat);
  // Parts of a sequence on other ranks. Exact: integers far below 2^24.
  context_->sequence->all_reduce(counts)->wait();
  if (divides_tokens(context_->tensor_parallel))
    context_->tensor_parallel.group->all_reduce(counts)->wait();
  const Tensor by_sequence =
      counts.to(torch::kDouble).view({sequences, count + 1});
  return by_sequence.narrow(1, 0, count) /
         (by_sequence.narrow(1, count, 1) *
          static_cast<double>(description_.per_token))
             .clamp_min(1);
}

}  // namespace brigade
