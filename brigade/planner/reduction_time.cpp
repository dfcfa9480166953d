// The parts of a step outside the pipeline: reduction and optimizer.
#include <algorithm>
#include <cmath>

#include "brigade/planner/step_estimate.h"
#include "brigade/schedule/bucket_prediction.h"

namespace brigade::planner {
namespace {

using machine::Collective;
using machine::GroupPlace;

constexpr double kNanoseconds = 1e9;

// A linear cost through two sizes, which is what bucket prediction takes.
AllReduceCost cost_of(
    const Training& training,
    const GroupPlace& place,
    Collective collective) {
  constexpr double kLarge = int64_t{1} << 30;
  const auto seconds = [&](double bytes) {
    // Links are fitted to the reduction of gradients, samples are of
    // activations.
    return quickest_collective(training.machine, place, collective, bytes);
  };
  const auto bucket = static_cast<double>(training.program->bucket_bytes);
  const double of_large = (seconds(kLarge) - seconds(kLarge / 2)) * 2;
  return {
      .latency_ns =
          std::max(0.0, seconds(bucket) - of_large * bucket / kLarge) *
          kNanoseconds,
      .ns_per_byte = of_large * kNanoseconds / kLarge};
}

// What one group of ranks reduces and gathers.
struct GroupWork {
  double parameters = 0;
  int layers = 1;
  double backward_s = 0;
  double forward_s = 0;
};

// The gradients of a rank as parameters that become ready evenly while backward
// runs: four of each layer, which is as fine as its matrices are.
double exposed_buckets(
    const Training& training,
    const GroupWork& work,
    const AllReduceCost& cost) {
  constexpr int kPerLayer = 4;
  const int count = std::max(1, work.layers * kPerLayer);
  std::vector<BucketParam> params(
      static_cast<size_t>(count),
      {.name = "",
       .numel = static_cast<int64_t>(work.parameters / count),
       .grad_element_bytes = training.precision.wire_bytes});
  BackwardTimeline timeline;
  timeline.end_ns = work.backward_s * kNanoseconds;
  for (int i = 0; i < count; ++i)
    timeline.ready_ns.push_back(
        timeline.end_ns * static_cast<double>(count - i) / count);
  const BucketPlan plan = plan_buckets(
      params,
      initial_order(BucketOrder::kReverse, count),
      {.capacity_bytes = training.program->bucket_bytes});
  const ExposurePrediction exposure = predict_exposure(plan, timeline, cost);
  const double hidden = exposure.communication_ns - exposure.exposed_ns;
  return (exposure.exposed_ns + training.constants.contention * hidden) /
         kNanoseconds;
}

// The ranks among which a zero stage shards.
GroupPlace owners_of(const Training& training, const GroupPlace& place) {
  const int ranks = training.program->zero_ranks;
  if (ranks == 0 || ranks >= place.ranks)
    return place;
  return {ranks, std::min(ranks, place.ranks_per_node)};
}

double exposed_in_group(
    const Training& training,
    const Layout& layout,
    const GroupPlace& place,
    const GroupWork& work) {
  if (place.ranks == 1 || work.parameters == 0)
    return 0;
  double exposed = 0;
  if (layout.zero_stage < 2) {
    // Shards of a part of the group are reduced by the other parts too.
    const bool scatters = layout.zero_stage == 1 &&
                          owners_of(training, place).ranks == place.ranks;
    const Collective collective =
        scatters ? Collective::kReduceScatter : Collective::kAllReduce;
    exposed = training.program->reduces_in_backward
                  ? exposed_buckets(
                        training, work, cost_of(training, place, collective))
                  : quickest_collective(
                        training.machine,
                        place,
                        collective,
                        work.parameters * training.precision.wire_bytes);
  }
  if (layout.zero_stage == 0 || layout.zero_stage == 3)
    return exposed;
  const double bytes = work.parameters * training.precision.weight_bytes;
  const GroupPlace owners = owners_of(training, place);
  const double gather =
      training.program->gather_seconds(training, owners, bytes);
  return exposed +
         exposed_beside(
             training.constants,
             gather,
             training.program->gathers_in_forward ? work.forward_s : 0);
}

}  // namespace

// Both kinds go on beside the same computation, which hides of each as much as
// its share.
double exposed_reduction(
    const Training& training,
    const Layout& layout,
    const ReductionWork& work) {
  const double all = work.parameters.everywhere + work.parameters.of_experts;
  const auto exposed = [&](double parameters, const GroupPlace& place) {
    const double share = all > 0 ? parameters / all : 0;
    return exposed_in_group(
        training,
        layout,
        place,
        {.parameters = parameters,
         .layers = work.layers,
         .backward_s = share * work.backward_s,
         .forward_s = share * work.forward_s});
  };
  return exposed(
             work.parameters.everywhere, training.place_dp_cp(layout.dims)) +
         exposed(
             work.parameters.of_experts,
             training.place_expert_replicas(layout.dims));
}

double optimizer_seconds(
    const Training& training,
    const Layout& layout,
    const ParameterSplit& parameters) {
  const machine::DeviceTime device(training.machine.device, training.constants);
  const GroupPlace all = training.place_dp_cp(layout.dims);
  const GroupPlace same = training.place_expert_replicas(layout.dims);
  const double owned =
      layout.zero_stage >= 1
          ? parameters.everywhere / owners_of(training, all).ranks +
                parameters.of_experts / same.ranks
          : parameters.everywhere + parameters.of_experts;
  const Precision& precision = training.precision;
  // The norm reads gradients; AdamW reads and writes master and moments, reads
  // the gradient, clears it and writes the weight.
  const double bytes =
      precision.gradient_bytes + 2.0 * precision.stepped_bytes +
      2.0 * precision.gradient_bytes + 2.0 * precision.weight_bytes;
  double seconds =
      device.memory(owned * bytes * training.program->elementwise_passes);
  for (Axis axis : kAxes)
    seconds += quickest_collective(
        training.machine,
        training.place(layout.dims, axis),
        Collective::kAllReduce,
        4);
  return seconds;
}

double slowest_of(int devices, double spread) {
  return devices <= 1
             ? 0
             : spread * std::sqrt(2 * std::log(static_cast<double>(devices)));
}

}  // namespace brigade::planner
