// What Hugging Face's config.json says of mixture of experts: a router sends
// each token to a few of many MLPs, the experts, in place of one MLP.
// Core layer: no libtorch, no files.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "brigade/topology/layer_partition.h"

namespace brigade {

struct ExpertsConfig {
  int64_t num_experts = 0;          // E
  int64_t num_experts_per_tok = 0;  // k, at most E
  int64_t width = 0;                // I, of an expert
  // The width of the expert that every token visits besides; 0: there is none.
  int64_t shared_width = 0;
  // Whether the weights of the k chosen experts are divided by their sum.
  bool norm_topk_prob = false;
  // transformers' coefficient of its own balancing loss. Only kept: that of
  // training is training.router_aux_loss.
  double router_aux_loss_coef = 0.001;
  // Layer i, from 0 on, has one MLP instead where i is below
  // `first_k_dense_replace`, is one of `mlp_only_layers`, or i + 1 is no
  // multiple of `decoder_sparse_step`.
  int64_t first_k_dense_replace = 0;
  int64_t decoder_sparse_step = 1;
  std::vector<int64_t> mlp_only_layers;
  // DeepSeek-V3's router: weights are multiplied by the factor; experts are
  // chosen from the `topk_group` best of `n_group` equal groups.
  double routed_scaling_factor = 1.0;
  int64_t n_group = 1;
  int64_t topk_group = 1;

  // The width of an MLP with the weights that a token visits.
  int64_t active_width() const {
    return num_experts_per_tok * width + shared_width;
  }
  // Whether a layer has experts.
  bool is_sparse(int64_t layer) const;
  bool operator==(const ExpertsConfig&) const = default;
};

// estimate_layer_costs() of a model that may have experts: layers with experts
// cost active_width() and the router.
LayerCosts estimate_layer_costs(
    TransformerSizes sizes,
    const std::optional<ExpertsConfig>& experts);

}  // namespace brigade
