// Which optimizer steps the weights, and its options. A further one is a value
// here with its name, its states (options/optimizer_states.cpp), what makes it
// (optim/make_optimizer.cpp) and its keys (config/training_keys.cpp).
//
// PURE.
#pragma once

#include "brigade/options/adamw.h"
#include "brigade/options/choice.h"

namespace brigade {

enum class OptimizerKind {
  kAdamW,
};
template <>
inline constexpr std::array kChoices<OptimizerKind>{
    Choice{OptimizerKind::kAdamW, "adamw"}};

// Of each kind; only those of `kind` count.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::kAdamW;
  AdamWOptions adamw;
};

}  // namespace brigade
