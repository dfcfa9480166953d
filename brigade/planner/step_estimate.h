// The time of a training step under a layout, by what it is spent on.
//
// PURE; a StepEstimator remembers tables that layouts share, so one thread uses
// one.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "brigade/planner/layer_time.h"
#include "brigade/planner/memory_estimate.h"
#include "brigade/planner/training.h"
#include "brigade/schedule/simulator.h"

namespace brigade::planner {

// Seconds of one step on the rank that computes longest; they add up to the
// step's time.
struct StepParts {
  // Its own parts, with exposed traffic of tp, cp, ep and zero.
  PassTime computation;
  double bubble = 0;     // waiting for other stages, transfers included
  double reduction = 0;  // exposed reduction of gradients and gather of weights
  double optimizer = 0;
  double slowest = 0;  // waiting for the slowest device
  double total() const {
    return computation.total() + bubble + reduction + optimizer + slowest;
  }
};

struct StepEstimate {
  Layout layout;
  StepParts parts;
  double seconds = 0;
  double mfu = 0;  // share of the peak in the products' dtype
  double tokens_per_s_per_device = 0;
  double bubble = 0;  // idle share of the pipeline's makespan, mean of ranks
  std::vector<MemoryParts> memory;  // of each rank of the pipeline
  // Exposed communication of data parallel; that of other axes is in the
  // computation, pp's posted transfers in the bubble.
  double exposed_dp() const { return parts.computation.dp + parts.reduction; }
};

class StepEstimator {
 public:
  explicit StepEstimator(const Training& training) : training_(training) {}

  // Requires a layout in which validate_layout() finds nothing.
  StepEstimate estimate(const Layout& layout);
  // Memory alone: quick.
  std::vector<MemoryParts> memory(const Layout& layout);
  // The pipeline of a layout, at most `micro_batches` of it, for a drawing.
  Simulation timeline(const Layout& layout, int micro_batches);

  const Training& training() const { return training_; }

 private:
  const std::vector<LayerRange>& cut(const Layout& layout);
  const Schedule& schedule(const Layout& layout, int micro_batches);
  std::vector<PartTime> stages(const Layout& layout);
  Simulation simulated(
      const Layout& layout,
      const std::vector<PartTime>& stages,
      int micro_batches);

  Training training_;
  std::map<int, std::vector<LayerRange>> cuts_;
  std::map<std::tuple<ScheduleKind, int, int, int>, Schedule> schedules_;
};

// What a rank exposes of its gradients' reduction and the gather of its
// weights. `backward_s` is its last micro-batch's backward, `forward_s` the
// next step's first forward; `parameters` are its own, after tensor and expert
// parallel.
struct ReductionWork {
  ParameterSplit parameters;
  int layers = 1;
  double backward_s = 0;
  double forward_s = 0;
};
double exposed_reduction(
    const Training& training,
    const Layout& layout,
    const ReductionWork& work);

// Clipping's norm, AdamW over owned parameters, and the agreement on the norm.
double optimizer_seconds(
    const Training& training,
    const Layout& layout,
    const ParameterSplit& parameters);

// The expected maximum of n normal deviations, about sqrt(2 ln n), times the
// spread of the devices.
double slowest_of(int devices, double spread);

}  // namespace brigade::planner
