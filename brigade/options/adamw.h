// Options of AdamW (optim/adamw.h); training.adam_*. PURE.
#pragma once

#include "brigade/options/kernels.h"

namespace brigade {

// torch.optim.AdamW's, with its defaults.
struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  ops::Kernels kernels = ops::Kernels::kAuto;
};

}  // namespace brigade
