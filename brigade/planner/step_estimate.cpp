#include "brigade/planner/step_estimate.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace brigade::planner {
namespace {

// Past its warm-up, which is longer with more stages, a pipeline repeats itself
// every p micro-batches, so longer ones are simulated up to here and continued.
int simulated_micro_batches(const Layout& layout, int64_t micro_batches) {
  const int pp = layout.dims.pp;
  const int64_t most = 4 * layout.stages() + micro_batches % pp;
  return static_cast<int>(std::min(micro_batches, most));
}

}  // namespace

const std::vector<LayerRange>& StepEstimator::cut(const Layout& layout) {
  std::vector<LayerRange>& ranges = cuts_[layout.stages()];
  if (ranges.empty())
    ranges = cut_stages(training_, layout.stages());
  return ranges;
}

const Schedule& StepEstimator::schedule(
    const Layout& layout,
    int micro_batches) {
  const std::tuple key = {
      layout.schedule, layout.dims.pp, layout.virtual_stages, micro_batches};
  Schedule& schedule = schedules_[key];
  if (schedule.per_rank.empty())
    schedule = make_computation(
        layout.schedule,
        {.ranks = layout.dims.pp,
         .virtual_stages = layout.virtual_stages,
         .micro_batches = micro_batches});
  return schedule;
}

std::vector<PartTime> StepEstimator::stages(const Layout& layout) {
  const std::vector<LayerRange>& ranges = cut(layout);
  const ModelShape& shape = training_.shape;
  using Kind = std::pair<int64_t, LayerMlp>;  // with the window
  const auto kind_of = [&](int layer) {
    return Kind(shape.window(layer), shape.mlp_of(layer));
  };
  std::map<Kind, std::optional<PartTime>> by_kind;
  std::vector<PartTime> times(ranges.size());
  for (size_t s = 0; s < ranges.size(); ++s) {
    std::map<Kind, int> layers;  // of the stage
    for (int i = ranges[s].begin; i < ranges[s].end; ++i)
      ++layers[kind_of(i)];
    for (const auto& [kind, count] : layers) {
      std::optional<PartTime>& layer = by_kind[kind];
      if (!layer)
        layer = layer_time(training_, layout, kind.first, kind.second);
      times[s].add(count, *layer);
    }
  }
  if (layout.dims.pp > 1 && training_.program->waits_for_transfers) {
    // Each stage is held up by the tensors it receives and those it sends.
    const double each = training_.program->transfer(training_, layout);
    for (size_t s = 0; s < times.size(); ++s) {
      const double ends =
          (s > 0 ? 1.0 : 0.0) + (s + 1 < times.size() ? 1.0 : 0.0);
      times[s].forward.pp = times[s].backward_input.pp = ends * each;
    }
  }
  times.front().add(1, embedding_time(training_, layout));
  times.back().add(1, head_time(training_, layout));
  return times;
}

Simulation StepEstimator::simulated(
    const Layout& layout,
    const std::vector<PartTime>& stages,
    int micro_batches) {
  SimulationCosts costs;
  costs.stages.clear();
  for (const PartTime& stage : stages)
    costs.stages.push_back(
        {.forward = stage.forward.total(),
         .backward_input = stage.backward_input.total(),
         .backward_weight = stage.backward_weight.total()});
  if (!training_.program->waits_for_transfers)
    costs.transfer = training_.program->transfer(training_, layout);
  return simulate(schedule(layout, micro_batches), costs);
}

std::vector<MemoryParts> StepEstimator::memory(const Layout& layout) {
  return estimate_memory(training_, layout, cut(layout));
}

Simulation StepEstimator::timeline(const Layout& layout, int micro_batches) {
  const int64_t m = planner::micro_batches(layout, training_.batch);
  return simulated(
      layout,
      stages(layout),
      static_cast<int>(std::min<int64_t>(m, micro_batches)));
}

StepEstimate StepEstimator::estimate(const Layout& layout) {
  const int pp = layout.dims.pp;
  const int64_t m = planner::micro_batches(layout, training_.batch);
  const std::vector<PartTime> times = stages(layout);
  const std::vector<LayerRange>& ranges = cut(layout);

  // The rank that computes longest.
  std::vector<PassTime> per_rank(static_cast<size_t>(pp));
  for (size_t s = 0; s < times.size(); ++s)
    per_rank[s % static_cast<size_t>(pp)] += times[s].total();
  const size_t longest = static_cast<size_t>(
      std::ranges::max_element(per_rank, {}, &PassTime::total) -
      per_rank.begin());

  StepEstimate result;
  result.layout = layout;
  result.parts.computation = static_cast<double>(m) * per_rank[longest];
  const double busy = result.parts.computation.total();
  double makespan = busy;
  if (pp > 1) {
    const int few = simulated_micro_batches(layout, m);
    makespan = simulated(layout, times, few).makespan;
    if (few < m) {
      const double before = simulated(layout, times, few - pp).makespan;
      makespan += (makespan - before) / pp * static_cast<double>(m - few);
      makespan = std::max(makespan, busy);
    }
  }
  result.parts.bubble = makespan - busy;
  double computed = 0;
  for (const PassTime& rank : per_rank)
    computed += rank.total() * static_cast<double>(m);
  result.bubble = 1 - computed / (pp * makespan);

  ReductionWork work;
  work.layers = 0;
  for (size_t s = longest; s < times.size(); s += static_cast<size_t>(pp)) {
    const StageParameters held =
        stage_parameters(training_.shape, ranges, static_cast<int>(s));
    work.parameters.everywhere +=
        static_cast<double>(held.everywhere) / layout.dims.tp;
    work.parameters.of_experts += static_cast<double>(held.of_experts) /
                                  (layout.dims.tp * layout.dims.ep);
    work.layers += ranges[s].size();
    work.backward_s +=
        times[s].backward_input.total() + times[s].backward_weight.total();
    work.forward_s += times[s].forward.total();
  }
  result.parts.reduction = exposed_reduction(training_, layout, work);
  result.parts.optimizer =
      optimizer_seconds(training_, layout, work.parameters);
  const int devices = layout.dims.world_size();
  result.parts.slowest =
      slowest_of(devices, training_.constants.device_spread) *
      (makespan + result.parts.optimizer);

  result.seconds = result.parts.total();
  const double tokens = static_cast<double>(training_.batch.sequences) *
                        static_cast<double>(training_.batch.sequence_tokens);
  result.tokens_per_s_per_device = tokens / result.seconds / devices;
  const machine::Device& device = training_.machine.device;
  result.mfu =
      result.tokens_per_s_per_device *
      model_flops_per_token(training_.shape, training_.batch.sequence_tokens) /
      device.peak(training_.precision.products);
  result.memory = estimate_memory(training_, layout, ranges);
  return result;
}

}  // namespace brigade::planner
