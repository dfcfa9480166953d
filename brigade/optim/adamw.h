// AdamW, one pass over memory per group. The arithmetic is torch.optim.AdamW's;
// see ops/adamw.h. Bytes of state and weight per element: 12, for a bf16 weight
// as for a float32 one.
#pragma once

#include <vector>

#include "brigade/optim/optimizer.h"

namespace brigade {

class AdamW final : public Optimizer {
 public:
  // The name by which every optimizer class has its options.
  using Options = AdamWOptions;
  AdamW(std::vector<OptimizerGroup> groups, const AdamWOptions& options);

 private:
  void step_range(const StepRange& range) override;
};

// AdamW's step of a range whose first states are its own.
void adamw_step(const StepRange& range, const AdamWOptions& options);

}  // namespace brigade
