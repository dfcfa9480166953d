// The losses of routers, training.router_aux_loss and router_z_loss, and over
// which tokens the first counts the use of experts, router_aux_loss_over. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

// What is added to the loss of each token and layer with experts
// (model/router.h).
struct RouterLosses {
  double balance = 0;
  double z = 0;
};

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
