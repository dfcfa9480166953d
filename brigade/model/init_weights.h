// Initial weights that depend on the seed and the parameter's name alone, never
// on the layout. What they are drawn from stands in the parameter's row.
#pragma once

#include <torch/types.h>

#include <cstdint>

#include "brigade/model_spec/parameter_table.h"

namespace brigade {

// The whole tensor of one parameter, float32, of row.shape. A rank that holds a
// slice takes it from this. NaN where a base model's weights say the values
// (Initialization::kRowNorms).
torch::Tensor initial_weight(const ParameterRow& row, int64_t seed);

}  // namespace brigade
