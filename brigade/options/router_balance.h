// Over which tokens a router's balance loss counts the use of experts;
// training.router_aux_loss_over. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

// The share of an expert in the choices of which tokens.
enum class BalanceOver {
  kSequence,     // of the token's own sequence
  kGlobalBatch,  // of the whole global batch of the step before
};
// Their names.
template <>
inline constexpr std::array kChoices<BalanceOver>{
    Choice{BalanceOver::kSequence, "sequence"},
    Choice{BalanceOver::kGlobalBatch, "global_batch"}};

}  // namespace brigade
