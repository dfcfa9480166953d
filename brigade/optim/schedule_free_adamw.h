// Schedule-free AdamW (Defazio et al. 2024, arXiv:2405.15682): the learning
// rate does not decay, because an average of the weights is evaluated. There
// are three sequences: z, the steps; x, their weighted mean; y, between them,
// where gradients are taken. In training the weights are y:
//
//   y = (1 - beta1) z + beta1 x
//   v = beta2 v + (1 - beta2) g^2
//   d = g / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * y
//   z -= lr d;  x = (1 - c) x + c z
//
// with c = w / (sum of all w so far), w = t^step_power * (highest lr so
// far)^rate_power. x is never stored: x = y + (1 - 1 / beta1) (z - y). Bytes of
// state and weight per element: 12.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "brigade/optim/optimizer.h"

namespace brigade {

class ScheduleFreeAdamW final : public Optimizer {
 public:
  // The options of AdamW, and those of the averages.
  struct Options {
    AdamWOptions adamw;
    ScheduleFreeOptions schedule_free;
  };
  // Throws ConfigError if beta1 is 0: y would be z, and x unknown.
  ScheduleFreeAdamW(std::vector<OptimizerGroup> groups, const Options& options);

  torch::Tensor average(
      const torch::Tensor& master,
      const std::vector<State>& states) const override;
  std::map<std::string, double> scalars() const override;
  // Sets values that scalars() returned.
  void set_scalars(const std::map<std::string, double>& scalars) override;

 private:
  // The average of one parameter group.
  struct Average {
    double highest_rate = 0;
    double sum = 0;
    double share = 1;  // c of this step
  };
  void begin(const std::vector<double>& rates) override;
  void step_range(const StepRange& range) override;
  int64_t max_numel() const override { return int64_t{1} << 20; }

  std::vector<Average> averages_;  // by parameter group
};

}  // namespace brigade
