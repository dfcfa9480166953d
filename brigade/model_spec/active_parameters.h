// How many of a model's weights a token meets.
// Core layer: no libtorch, no files.
#pragma once

#include <cstdint>

#include "brigade/model_spec/decoder_config.h"

namespace brigade {

// All of them, but of each layer's experts k: what FLOPs per token are counted
// by. parameter_count() of a model without experts.
int64_t active_parameter_count(const DecoderConfig& config);

}  // namespace brigade
