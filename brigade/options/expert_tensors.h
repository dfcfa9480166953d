// How the files of a model with experts hold their weights. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

enum class ExpertTensors {
  kSeparate,  // each expert's gate, up and down: what models are published as
  // Two tensors per layer, as transformers 5 has them in memory:
  // mlp.experts.gate_up_proj [E, 2 I, C], gate above up, and
  // mlp.experts.down_proj [E, C, I]
  kFused,
};

template <>
inline constexpr std::array kChoices<ExpertTensors>{
    Choice{ExpertTensors::kSeparate, "separate"},
    Choice{ExpertTensors::kFused, "fused"}};

}  // namespace brigade
