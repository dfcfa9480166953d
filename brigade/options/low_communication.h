// Options of low-communication training (DiLoCo): how groups that train apart
// merge a fragment of the model (train/outer_fragment.h); distributed.outer_*.
// schedule/fragment_schedule.h says when. PURE.
#pragma once

#include "brigade/options/kernels.h"
#include "brigade/options/wire_format.h"

namespace brigade {

// The outer Nesterov SGD (optim/outer_optimizer.h).
struct OuterOptimizerOptions {
  double lr = 0.7;
  double momentum = 0.9;
  bool operator==(const OuterOptimizerOptions&) const = default;
};

struct OuterFragmentOptions {
  OuterOptimizerOptions optimizer;
  WireFormat wire = WireFormat::kFp32;  // between groups
  double alpha = 0;  // share of the local weights that is kept
  // A group whose change is not finite, or has a norm above so many times the
  // median of the other groups', is left out of the mean; 0: no norm is too
  // large.
  double norm_limit = 0;
  ops::Kernels kernels = ops::Kernels::kAuto;
  bool operator==(const OuterFragmentOptions&) const = default;
};

}  // namespace brigade
