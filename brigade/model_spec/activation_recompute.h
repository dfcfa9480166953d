// Activation checkpointing: which activations a layer computes a second time in
// backward instead of keeping them from forward; training.recompute.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

enum class Recompute {
  kNone,
  kSelective,  // attention
  kFull,       // the whole block
};

template <>
inline constexpr std::array kChoices<Recompute>{
    Choice{Recompute::kNone, "none"},
    Choice{Recompute::kSelective, "selective"},
    Choice{Recompute::kFull, "full"}};

}  // namespace brigade
