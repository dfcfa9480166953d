#include "brigade/model_spec/experts_config.h"

#include <algorithm>

namespace brigade {

bool ExpertsConfig::is_sparse(int64_t layer) const {
  return layer >= first_k_dense_replace &&
         (layer + 1) % decoder_sparse_step == 0 &&
         std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) ==
             mlp_only_layers.end();
}

LayerCosts estimate_layer_costs(
    TransformerSizes sizes,
    const std::optional<ExpertsConfig>& experts) {
  LayerCosts costs = estimate_layer_costs(sizes);
  if (!experts)
    return costs;
  sizes.intermediate_size = experts->active_width();
  const LayerCosts of_sparse = estimate_layer_costs(sizes);
  const auto router =
      2.0 * static_cast<double>(experts->num_experts * sizes.hidden_size);
  for (size_t i = 0; i < costs.layers.size(); ++i) {
    if (experts->is_sparse(static_cast<int64_t>(i)))
      costs.layers[i] = of_sparse.layers[i] + router;
  }
  return costs;
}

}  // namespace brigade
