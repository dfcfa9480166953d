// Which implementation of GradSync sums gradients; distributed.grad_sync. PURE.
#pragma once

#include "brigade/options/choice.h"

namespace brigade {

// Which class synchronises gradients.
enum class GradSyncAlgorithm {
  kBucketed,  // BucketedGradSync
  kPerParam,  // one all-reduce each: simple, slow, for comparison
};
// As the config spells them.
template <>
inline constexpr std::array kChoices<GradSyncAlgorithm>{
    Choice{GradSyncAlgorithm::kBucketed, "bucketed"},
    Choice{GradSyncAlgorithm::kPerParam, "per_param"}};

}  // namespace brigade
