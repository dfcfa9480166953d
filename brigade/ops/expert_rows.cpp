#include "brigade/ops/expert_rows.h"

#include <limits>
#include <tuple>

#include "brigade/ops/carried.h"
#include "brigade/ops/describe.h"
#include "brigade/ops/kernel_set.h"
#include "brigade/ops/once_differentiable.h"

namespace brigade::ops {
namespace {

constexpr const char* kExpertsOp = "experts";

struct ExpertRowsSaved {
  ExpertPairs pairs;
  Tensor is_kept;
  const KernelSet* kernels;
};

// A pair that is not kept names row 0, which is there unless no pair is kept:
// of a part of a sequence, all of whose experts are full.
Tensor sum_of_kept(
    const Tensor& rows,
    const ExpertRowsSaved& saved,
    const Tensor& weights) {
  if (rows.size(0) == 0)
    return at::zeros({saved.pairs.tokens(), rows.size(1)}, rows.options());
  return saved.kernels->sum_of_pairs(rows, saved.pairs, weights);
}

struct RowsNode : OnceDifferentiable<RowsNode> {
  static constexpr const char* kName = "rows_of_tokens";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& x,
      const ExpertRowsSaved& saved) {
    carry(context, saved);
    return saved.kernels->rows_of_pairs(x, saved.pairs, {});
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    const auto& saved = carried<ExpertRowsSaved>(context);
    variable_list result(2);
    if (!gradients[0].defined())
      return result;
    const Tensor weights = saved.is_kept.defined()
                               ? saved.is_kept.to(wide_dtype(gradients[0]))
                               : saved.is_kept;
    result[0] = sum_of_kept(gradients[0], saved, weights);
    return result;
  }
};

struct CombineNode : OnceDifferentiable<CombineNode> {
  static constexpr const char* kName = "combine_rows";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& rows,
      const Tensor& weights,
      const ExpertRowsSaved& saved) {
    context->save_for_backward({rows, weights});
    carry(context, saved);
    return sum_of_kept(rows, saved, weights.contiguous());
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    variable_list result(3);
    if (!gradients[0].defined())
      return result;
    const auto& saved = carried<ExpertRowsSaved>(context);
    const auto tensors = context->get_saved_variables();
    result[0] = saved.kernels->rows_of_pairs(
        gradients[0], saved.pairs, tensors[1].contiguous());
    result[1] = tensors[0].size(0) == 0
                    ? at::zeros_like(tensors[1])
                    : saved.kernels->products_of_pairs(
                          tensors[0], gradients[0], saved.pairs);
    return result;
  }
};

struct PermuteNode : OnceDifferentiable<PermuteNode> {
  static constexpr const char* kName = "permute_rows";

  static Tensor forward(
      AutogradContext* context,
      const Tensor& rows,
      const Tensor& index,
      const Tensor& inverse) {
    context->save_for_backward({inverse});
    return rows.index_select(0, index);
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    variable_list result(3);
    if (gradients[0].defined())
      result[0] =
          gradients[0].index_select(0, context->get_saved_variables()[0]);
    return result;
  }
};

struct AttachNode : OnceDifferentiable<AttachNode> {
  static constexpr const char* kName = "attach_loss";

  static Tensor
  forward(AutogradContext* context, const Tensor& x, const Tensor& loss) {
    context->saved_data["dtype"] = loss.scalar_type();
    return x.view(x.sizes());
  }

  static variable_list gradients_of(
      AutogradContext* context,
      variable_list gradients) {
    return {
        gradients[0],
        at::ones(
            {},
            at::dtype(context->saved_data["dtype"].toScalarType())
                .device(gradients[0].device()))};
  }
};

// Minus infinity for the experts of groups that are not among the best.
Tensor in_best_groups(const Tensor& scores, const ExpertChoice& choice) {
  const Tensor grouped = scores.view({scores.size(0), choice.groups, -1});
  const Tensor best_two =
      std::get<0>(grouped.topk(2, /*dim=*/-1)).sum(/*dim=*/-1);
  const Tensor chosen =
      choose_experts(best_two, {.per_token = choice.chosen_groups});
  const Tensor is_chosen = at::zeros(best_two.sizes(), at::kBool)
                               .to(scores.device())
                               .scatter_(1, chosen, true);
  return grouped
      .masked_fill(
          is_chosen.unsqueeze(-1).logical_not(),
          -std::numeric_limits<double>::infinity())
      .view(scores.sizes());
}

}  // namespace

Tensor choose_experts(const Tensor& scores, const ExpertChoice& choice) {
  const torch::NoGradGuard no_grad;
  require(
      scores.dim() == 2 && choice.per_token <= scores.size(1) &&
          scores.size(1) % choice.groups == 0,
      kExpertsOp,
      "{} of the experts of scores {} in {} groups cannot be chosen",
      choice.per_token,
      describe(scores),
      choice.groups);
  const Tensor candidates = choice.chosen_groups < choice.groups
                                ? in_best_groups(scores.detach(), choice)
                                : scores.detach();
  // topk() orders equal ones as it likes.
  return std::get<1>(at::sort(
                         candidates,
                         /*stable=*/true,
                         /*dim=*/-1,
                         /*descending=*/true))
      .narrow(1, 0, choice.per_token)
      .contiguous();
}

Tensor within_capacity(const Tensor& experts, int64_t count, int64_t capacity) {
  const torch::NoGradGuard no_grad;
  require(
      experts.dim() == 3 && experts.scalar_type() == torch::kLong &&
          capacity > 0,
      kExpertsOp,
      "{} with a capacity of {} is not int64 [B, T, k]",
      describe(experts),
      capacity);
  // Pairs by sequence and expert, each in the order of its tokens: how far a
  // pair lies behind the first of its kind.
  const int64_t sequences = experts.size(0);
  const Tensor kind =
      (experts +
       count * at::arange(sequences, experts.options()).view({-1, 1, 1}))
          .flatten();
  const auto [sorted, pair] =
      at::sort(kind, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const Tensor sizes = at::bincount(kind, {}, sequences * count);
  const Tensor begins = sizes.cumsum(0) - sizes;
  const Tensor place =
      at::arange(kind.numel(), kind.options()) - begins.index_select(0, sorted);
  return at::empty_like(kind, kind.options().dtype(at::kBool))
      .scatter_(0, pair, place < capacity)
      .view(experts.sizes());
}

ExpertOrder order_by_expert(
    const Tensor& experts,
    const std::vector<int64_t>& order,
    const Tensor& is_kept) {
  const torch::NoGradGuard no_grad;
  require(
      experts.dim() == 2 && experts.scalar_type() == torch::kLong,
      kExpertsOp,
      "{} is not int64 [N, k]",
      describe(experts));
  const auto count = static_cast<int64_t>(order.size());
  const Tensor flat = experts.reshape({-1});
  ExpertOrder result;
  const Tensor has_row = is_kept.defined() ? is_kept.reshape({-1}) : is_kept;
  const Tensor counts =
      at::bincount(
          has_row.defined() ? flat.masked_select(has_row) : flat, {}, count)
          .cpu();
  require(
      counts.numel() == count,
      kExpertsOp,
      "a token goes to expert {}, but there are {}",
      counts.numel() - 1,
      count);
  const auto of_expert = counts.accessor<int64_t, 1>();
  for (int64_t i = 0; i < count; ++i)
    result.counts.push_back(of_expert[i]);
  Tensor places = at::empty({count}, at::kLong);
  places.scatter_(
      0, torch::tensor(order, at::kLong), at::arange(count, at::kLong));
  Tensor place_of_pair = places.to(flat.device()).index_select(0, flat);
  if (has_row.defined())
    place_of_pair.masked_fill_(has_row.logical_not(), count);
  const int64_t rows = counts.sum().item<int64_t>();
  result.pair_of_row = std::get<1>(at::sort(
                                       place_of_pair,
                                       /*stable=*/true,
                                       /*dim=*/0,
                                       /*descending=*/false))
                           .narrow(0, 0, rows);
  result.row_of_pair = at::zeros_like(flat);
  result.row_of_pair.scatter_(
      0, result.pair_of_row, at::arange(rows, flat.options()));
  result.row_of_pair = result.row_of_pair.view(experts.sizes());
  result.is_kept = is_kept;
  return result;
}

Tensor
rows_of_tokens(const Tensor& x, const ExpertOrder& order, Kernels kernels) {
  require(
      x.dim() == 2 && x.size(0) == order.tokens(),
      kExpertsOp,
      "x {} is not [N, C] of {} tokens",
      describe(x),
      order.tokens());
  return RowsNode::apply(
      x,
      ExpertRowsSaved{
          order, order.is_kept, &choose_kernels(kExpertsOp, kernels, {&x})});
}

Tensor combine_rows(
    const Tensor& rows,
    const Tensor& weights,
    const ExpertOrder& order,
    Kernels kernels) {
  require(
      rows.dim() == 2 && rows.size(0) == order.pair_of_row.size(0) &&
          weights.sizes() == order.row_of_pair.sizes() &&
          weights.scalar_type() == wide_dtype(rows),
      kExpertsOp,
      "rows {} and weights {} are not those of {} tokens with {} experts each",
      describe(rows),
      describe(weights),
      order.tokens(),
      order.per_token());
  return CombineNode::apply(
      rows,
      order.is_kept.defined() ? weights * order.is_kept : weights,
      ExpertRowsSaved{
          order, order.is_kept, &choose_kernels(kExpertsOp, kernels, {&rows})});
}

Tensor
permute_rows(const Tensor& rows, const Tensor& index, const Tensor& inverse) {
  return PermuteNode::apply(rows, index, inverse);
}

Tensor attach_loss(const Tensor& x, const Tensor& loss) {
  return AttachNode::apply(x, loss);
}

}  // namespace brigade::ops
