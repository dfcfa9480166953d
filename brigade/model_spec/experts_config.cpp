#include "brigade/model_spec/experts_config.h"

#include <algorithm>

namespace brigade {

bool ExpertsConfig::is_sparse(int64_t layer) const {
  return layer >= first_k_dense_replace &&
         (layer + 1) % decoder_sparse_step == 0 &&
         std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) ==
             mlp_only_layers.end();
}

}  // namespace brigade
