// The frequencies of rotary embeddings under each rule of rope_scaling, in
// double, as transformers' modeling_rope_utils.py defines them.
//
// Core layer: no libtorch, no files.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/model_spec/model_description.h"

namespace brigade {

struct RotaryFrequencies {
  // [D/2], radians per token; with RotaryDescription::share those of the dims
  // that are rotated, then zeros.
  std::vector<double> values;
  // cos and sin are multiplied by it (yarn's attention factor).
  double magnitude = 1.0;
};

// Whether they depend on the sequence's length.
bool depend_on_length(const RotaryDescription& rotary);

// `length`: tokens of the sequence, the last position + 1; read where
// depend_on_length(). Precondition: head_dim is even and positive.
RotaryFrequencies rotary_frequencies(
    const RotaryDescription& rotary,
    int64_t head_dim,
    int64_t length);

}  // namespace brigade
