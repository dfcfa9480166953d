// Mixture of experts: which experts a token visits, its row brought to each of
// them, and the sum of their results. Dropless and without padding: a token
// has k rows, and rows of one expert lie together.
//
//   scores [N, E] --choose_experts()--> experts [N, k]
//                 --order_by_expert()--> ExpertOrder
//   x [N, C]      --rows_of_tokens()--> rows [N * k, C], by expert
//   rows          --combine_rows()----> [N, C]
//
// A token's sum is made in the order of its k choices, in the wide dtype, and
// rounded once: it depends neither on where its experts are nor on which other
// tokens there are.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "brigade/ops/op_options.h"

namespace brigade::ops {

using torch::Tensor;

// How many experts a token visits, and from which of them.
struct ExpertChoice {
  int64_t per_token = 1;  // k
  // Only experts of the `chosen_groups` best of `groups` equal groups are
  // chosen; a group's score is the sum of its two best.
  int64_t groups = 1;
  int64_t chosen_groups = 1;
};

// scores: floating point [N, E]. Returns int64 [N, k], the best first; of equal
// ones the lower index. Builds no graph.
Tensor choose_experts(const Tensor& scores, const ExpertChoice& choice);

// The pairs of a token and one of its experts, sorted by expert (in an order of
// experts that may be any), then by token, then by choice.
struct ExpertOrder {
  Tensor pair_of_row;           // int64 [N * k]: token * k + choice
  Tensor row_of_pair;           // int64 [N, k]: the inverse
  std::vector<int64_t> counts;  // rows of each of the E experts
};
// experts: int64 [N, k], each among the E of `order`, which has every number
// below E once. Reads the counts on the host.
ExpertOrder order_by_expert(
    const Tensor& experts,
    const std::vector<int64_t>& order);

// x: [N, C]; returns the token's row for each pair, [N * k, C].
Tensor rows_of_tokens(
    const Tensor& x,
    const ExpertOrder& order,
    Kernels kernels = Kernels::kAuto);

// rows: [N * k, C]; weights: wide [N, k]. Returns [N, C] of rows' dtype: the
// sum over each token's rows times their weights.
Tensor combine_rows(
    const Tensor& rows,
    const Tensor& weights,
    const ExpertOrder& order,
    Kernels kernels = Kernels::kAuto);

// rows[index]; `index` is a permutation and `inverse` its inverse, int64 [R].
Tensor
permute_rows(const Tensor& rows, const Tensor& index, const Tensor& inverse);

// x itself, in whose backward `loss`, a scalar, gets a gradient of 1: a loss of
// a layer, which is added to that of the model without passing through it.
Tensor attach_loss(const Tensor& x, const Tensor& loss);

}  // namespace brigade::ops
