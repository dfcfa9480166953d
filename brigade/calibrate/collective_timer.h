// How long collectives take where all ranks compute, as in training.
//
// Collective: every rank makes the same calls in the same order.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "brigade/calibrate/calibration.h"
#include "brigade/calibrate/measure.h"
#include "brigade/calibrate/phase_timer.h"
#include "brigade/comm/communicator.h"

namespace brigade {

class CollectiveTimer {
 public:
  CollectiveTimer(CommunicatorPtr world, const MeasureOptions& options)
      : world_(std::move(world)), options_(options) {}

  // Times fp32 all-reduces, one after another, as gradients are reduced. The
  // groups of a size work at once.
  void add_all_reduces(
      Communicator& group,
      std::vector<machine::AllReduceSample>& samples) const;
  // Times bf16 collectives, as tensor parallel exchanges activations and stage
  // 1 gathers weights: other code of the communicator.
  void add_collectives(
      Communicator& group,
      std::vector<machine::CollectiveSample>& samples) const;
  // Times all-reduces beside a computation that takes longer than they do.
  machine::OverlapSample overlap() const;

 private:
  double between_computations_seconds(
      int64_t bytes,
      const std::function<void()>& work) const;

  CommunicatorPtr world_;
  MeasureOptions options_;
};

}  // namespace brigade
