// Trains one model in several widths at several learning rates, a few steps
// each, from the config's initial weights: `brigade tune-rate`. On one rank;
// writes no file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "brigade/comm/process_mesh.h"
#include "brigade/config/train_config.h"
#include "brigade/data/training_data.h"
#include "brigade/launch/environment.h"
#include "brigade/report/rate_sweep.h"

namespace brigade {

// The config's model with another hidden size: heads as wide as before, and
// more or fewer of them; key-value heads, the MLP's and the experts' widths in
// proportion, as near as the heads allow and to a multiple of 8. Throws
// ConfigError for pretrained weights, where heads do not fit the width, and
// where the model does not fit the layout. PURE.
TrainConfig with_width(const TrainConfig& config, int64_t width);

// How a run of so many steps is like the config's: its warm-up, decay and table
// are the same shares of it, and the lowest rate and the optimizer's own rates
// of `rate`. It evaluates nothing, and skips steps that are not finite. PURE.
TrainConfig as_short_run(const TrainConfig& config, int64_t steps, double rate);

class RateTuner {
 public:
  // Opens the data and starts the one rank. Throws as training does.
  RateTuner(TrainConfig config, const LaunchEnvironment& environment);

  // Called after each step, with its number and its loss.
  using OnStep = std::function<void(int64_t step, double loss)>;
  // `sweep`: of which steps and checked_steps are read. A training whose loss
  // or gradient is not finite ends there.
  RateTrial try_rate(
      const RateSweep& sweep,
      int64_t width,
      double rate,
      const OnStep& on_step) const;

 private:
  TrainConfig config_;
  TrainingData data_;
  std::unique_ptr<ProcessMesh> mesh_;
};

}  // namespace brigade
