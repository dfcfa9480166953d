#pragma once

#include <torch/types.h>

#include <string_view>

#include "brigade/safetensors/dtype.h"

namespace brigade {

// Throws DataError that names `tensor` when `dtype` is no float: weights and
// optimizer state are floats.
torch::Dtype torch_dtype(SafetensorsDtype dtype, std::string_view tensor);

}  // namespace brigade
