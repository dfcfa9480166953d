// Options of SGD (optim/sgd.h); training.sgd_*. PURE.
#pragma once

namespace brigade {

// torch.optim.SGD's, with its defaults.
struct SgdOptions {
  double momentum = 0;  // 0: no state is kept
  bool nesterov = false;
};

}  // namespace brigade
