// Mixture of experts: which experts a token visits, its row brought to each of
// them, and the sum of their results. Without padding: a token has k rows, less
// those that experts have no room for, and rows of one expert lie together.
//
//   scores [N, E] --choose_experts()--> experts [N, k]
//                 (--within_capacity()--> is_kept [N, k])
//                 --order_by_expert()--> ExpertOrder
//   x [N, C]      --rows_of_tokens()--> rows [R, C], by expert; R = N k if kept
//   rows          --combine_rows()----> [N, C]
//
// A token's sum is made in the order of its k choices, in the wide dtype, and
// rounded once: it depends neither on where its experts are nor, but for a
// capacity, on which other tokens there are.
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

// experts: int64 [B, T, k], of B sequences, below `count`. Whether a token is
// among the first `capacity` of its sequence that chose the expert: bool
// [B, T, k]. Later tokens change nothing for earlier ones.
Tensor within_capacity(const Tensor& experts, int64_t count, int64_t capacity);

// The pairs of a token and one of its experts, and the row of each; contiguous.
// R is N k, or less.
struct ExpertPairs {
  Tensor pair_of_row;  // int64 [R]: token * k + choice
  Tensor row_of_pair;  // int64 [N, k]: the inverse; 0 where there is none
  int64_t tokens() const { return row_of_pair.size(0); }
  int64_t per_token() const { return row_of_pair.size(1); }
};

// Those pairs, sorted by expert (in an order of experts that may be any), then
// by token, then by choice.
struct ExpertOrder : ExpertPairs {
  std::vector<int64_t> counts;  // rows of each of the E experts
  Tensor is_kept = {};  // bool [N, k]: pairs that have rows; undefined: all
};
// experts: int64 [N, k], each among the E of `order`, which has every number
// below E once. Pairs that are not kept have no rows. Reads the counts on the
// host.
ExpertOrder order_by_expert(
    const Tensor& experts,
    const std::vector<int64_t>& order,
    const Tensor& is_kept = {});

// x: [N, C]; returns the token's row for each pair that has one, [R, C].
Tensor rows_of_tokens(
    const Tensor& x,
    const ExpertOrder& order,
    Kernels kernels = Kernels::kAuto);

// rows: [R, C]; weights: wide [N, k]. Returns [N, C] of rows' dtype: the sum
// over each token's rows times their weights.
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
