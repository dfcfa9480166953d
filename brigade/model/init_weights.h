// Initial weights that depend on the seed and the parameter's name alone, never
// on the layout: Hugging Face's scheme, normal(0, initializer_range) for
// matrices and embeddings, ones for norms, zeros for biases.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>

#include "brigade/model_spec/param_names.h"

namespace brigade {

// The whole tensor of one parameter, float32, of info.shape. A rank that holds
// a slice takes it from this.
torch::Tensor
initial_weight(const ParamInfo& info, double initializer_range, int64_t seed);

}  // namespace brigade
