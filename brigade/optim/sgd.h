// Stochastic gradient descent with momentum: torch.optim.SGD's arithmetic
// without dampening,
//
//   g += weight_decay * w;  m = mu m + g;  w -= lr * (nesterov ? g + mu m : m)
//
// Weight decay is L2 regularisation, a part of the gradient. Bytes of state and
// weight per element: 4, and 4 more with momentum.
#pragma once

#include <cstdint>
#include <vector>

#include "brigade/optim/optimizer.h"

namespace brigade {

class Sgd final : public Optimizer {
 public:
  // The name by which every optimizer class has its options.
  using Options = SgdOptions;
  Sgd(std::vector<OptimizerGroup> groups, const SgdOptions& options);

 private:
  void step_range(const StepRange& range) override;
  int64_t max_numel() const override { return int64_t{1} << 20; }
};

}  // namespace brigade
