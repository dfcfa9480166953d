#include "brigade/calibrate/calibration.h"

#include <algorithm>

#include "brigade/machine/collective_time.h"
#include "brigade/machine/device_time.h"
#include "brigade/planner/layer_time.h"

namespace brigade::machine {
namespace {

double largest(const std::vector<ProductRate>& rates) {
  double most = 0;
  for (const ProductRate& rate : rates)
    most = std::max(most, rate.flops_per_s);
  return most;
}

// Least squares of seconds = launch + latency * x + y / bytes_per_s over all
// samples, each divided by its seconds.
Link fit_link(const Measurements& measurements, Machine machine) {
  // What the model takes for a latency, and for a byte per second, of 1.
  const auto slope = [&](const AllReduceSample& sample, const Link& link) {
    machine.intra = link;
    return collective_seconds(
        machine,
        {sample.ranks, sample.ranks},
        Collective::kAllReduce,
        Algorithm::kRing,
        static_cast<double>(sample.bytes));
  };
  constexpr double kInfinite = 1e30;
  double xx = 0;
  double xy = 0;
  double yy = 0;
  double xt = 0;
  double yt = 0;
  for (const AllReduceSample& sample : measurements.all_reduces) {
    const double launch = slope(sample, {kInfinite, 0, 1});
    const double x =
        (slope(sample, {kInfinite, 1, 1}) - launch) / sample.seconds;
    const double y = (slope(sample, {1, 0, 1}) - launch) / sample.seconds;
    const double t = std::max(0.0, sample.seconds - launch) / sample.seconds;
    xx += x * x;
    xy += x * y;
    yy += y * y;
    xt += x * t;
    yt += y * t;
  }
  const double determinant = xx * yy - xy * xy;
  double latency = determinant > 0 ? (xt * yy - yt * xy) / determinant : 0;
  latency = std::max(0.0, latency);
  const double seconds_per_byte = yy > 0 ? (yt - latency * xy) / yy : 0;
  return {seconds_per_byte > 0 ? 1 / seconds_per_byte : 1e12, latency, 1};
}

// What computation beside the link lost, over the time that the link took.
double contention_of(const OverlapSample& overlap, const Machine& machine) {
  const double each = quickest_collective(
      machine,
      {overlap.ranks, overlap.ranks},
      Collective::kAllReduce,
      static_cast<double>(overlap.bytes));
  return std::clamp(overlap.seconds / (overlap.count * each), 0.0, 1.0);
}

bool is_measured(const LayerSample& sample) {
  return sample.forward_s > 0 && sample.backward_s > 0;
}

double seconds_of(const LayerSample& sample) {
  return sample.forward_s + sample.backward_s;
}

// What the machine's figures say of a sample's layer.
planner::PartTime predicted(
    const LayerSample& sample,
    const Constants& constants,
    const Machine& machine) {
  planner::Training training;
  training.machine = machine;
  training.constants = constants;
  training.batch = {sample.sequence_tokens, sample.sequences};
  training.shape.layers = 1;
  training.shape.hidden = sample.hidden;
  training.shape.heads = training.shape.kv_heads = sample.heads;
  training.shape.head_dim = sample.hidden / sample.heads;
  training.shape.intermediate = sample.intermediate;
  planner::Layout layout;
  layout.dims.tp = sample.tp;
  layout.dims.cp = sample.cp;
  layout.tokens = sample.tokens;
  layout.micro_batch = static_cast<int>(sample.sequences);
  return layer_time(training, layout, 0);
}

// What layers took over what the machine's parts say that they take.
void set_layer_factors(
    const Measurements& measurements,
    const Constants& constants,
    Machine& machine) {
  const LayerSample& sample = measurements.layer;
  if (!is_measured(sample))
    return;
  const planner::PartTime parts = predicted(sample, constants, machine);
  const auto factor = [](double seconds, double of_parts) {
    return std::clamp(seconds / of_parts, 0.5, 2.0);
  };
  machine.device.forward_factor =
      factor(sample.forward_s, parts.forward.total());
  machine.device.backward_factor = factor(
      sample.backward_s,
      parts.backward_input.total() + parts.backward_weight.total());
  const LayerSample& again = measurements.recomputed_layer;
  if (is_measured(again))
    machine.device.recompute_factor = factor(
        again.forward_s + again.backward_s - sample.forward_s -
            sample.backward_s,
        sample.forward_s);
}

// A kind of collective by what layers of one layout took.
struct CollectiveInLayers {
  Collective collective;
  int ranks;
  std::vector<CollectiveSample> samples;  // by bytes, ascending
};

// Bytes of the collectives of a sample's layer.
int64_t collective_bytes(const LayerSample& sample) {
  const int64_t local =
      sample.sequences * sample.sequence_tokens / sample.cp * sample.hidden;
  // Keys and values; or activations.
  return (sample.cp > 1 ? 2 : 1) * 2 * local;
}

std::vector<Collective> collectives_of(const LayerSample& sample) {
  if (sample.cp > 1)
    return {Collective::kExchange};
  if (sample.tokens == TokenLayout::kSharded)
    return {Collective::kReduceScatter, Collective::kAllGather};
  return {Collective::kAllReduce};
}

// Forward and backward together.
int collectives_per_layer(const LayerSample& sample) {
  if (sample.cp > 1)
    return sample.cp - 1 + planner::Program().backward_exchanges(sample.cp);
  // Two regions each way, of an all-reduce or of two halves.
  return sample.tokens == TokenLayout::kSharded ? 8 : 4;
}

double computation_of(const planner::PartTime& time) {
  return time.forward.computation() + time.backward_input.computation() +
         time.backward_weight.computation();
}

// Up to the longest of the layers' samples they replace the machine's; longer
// ones take as much more than it as they did.
void replace_samples(const CollectiveInLayers& kind, Machine& machine) {
  std::vector<CollectiveSample>& all = machine.collectives;
  const CollectiveSample& longest = kind.samples.back();
  const GroupPlace place = {kind.ranks, kind.ranks};
  const bool continues = is_sampled(machine, place, kind.collective);
  const double more =
      longest.seconds -
      sampled_seconds(
          machine, place, kind.collective, static_cast<double>(longest.bytes));
  const auto is_kind = [&](const CollectiveSample& sample) {
    return sample.collective == kind.collective && sample.ranks == kind.ranks;
  };
  const auto is_covered = [&](const CollectiveSample& sample) {
    return is_kind(sample) && sample.bytes <= longest.bytes;
  };
  all.erase(std::remove_if(all.begin(), all.end(), is_covered), all.end());
  for (CollectiveSample& sample : all) {
    if (continues && is_kind(sample))
      sample.seconds = std::max(longest.seconds, sample.seconds + more);
  }
  const auto longer = std::find_if(all.begin(), all.end(), is_kind);
  all.insert(longer, kind.samples.begin(), kind.samples.end());
}

// Measured layers' collectives instead of those that were measured apart.
void set_collectives_in_layers(
    const Measurements& measurements,
    const Constants& constants,
    Machine& machine) {
  std::vector<CollectiveInLayers> kinds;
  const auto kind_of = [&](Collective collective, int ranks) -> auto& {
    for (CollectiveInLayers& kind : kinds) {
      if (kind.collective == collective && kind.ranks == ranks)
        return kind;
    }
    return kinds.emplace_back(CollectiveInLayers{collective, ranks, {}});
  };
  for (const SharedLayerSample& sample : measurements.shared_layers) {
    if (!is_measured(sample.shared) || !is_measured(sample.single))
      continue;
    const auto computation = [&](const LayerSample& layer) {
      return computation_of(predicted(layer, constants, machine));
    };
    const double whole = seconds_of(sample.shared);
    const double alone = seconds_of(sample.single) *
                         computation(sample.shared) /
                         computation(sample.single);
    // Calibrations of a loud machine may find less than nothing.
    constexpr double kLeast = 0.02;
    const double beyond = std::max(kLeast * whole, whole - alone);
    const int ranks = sample.shared.tp * sample.shared.cp;
    for (Collective collective : collectives_of(sample.shared))
      kind_of(collective, ranks)
          .samples.push_back(
              {collective,
               ranks,
               collective_bytes(sample.shared),
               beyond / collectives_per_layer(sample.shared)});
  }
  for (const CollectiveInLayers& kind : kinds)
    replace_samples(kind, machine);
}

}  // namespace

Machine machine_of(
    const Measurements& measurements,
    const Constants& constants) {
  Machine machine;
  machine.name = measurements.name;
  machine.devices_per_node = measurements.ranks;
  machine.cards_per_node = measurements.ranks;
  machine.device_spread = measurements.device_spread;
  Device& device = machine.device;
  device.name = measurements.name;
  device.memory_bytes = measurements.memory_bytes;
  device.reserved_bytes = measurements.reserved_bytes;
  device.memory_bytes_per_s =
      measurements.memory_bytes_per_s / constants.memory_efficiency;
  device.elementwise_bytes_per_s = measurements.elementwise_bytes_per_s;
  device.elementwise_backward_bytes_per_s =
      measurements.elementwise_backward_bytes_per_s;
  device.logits_bytes_per_s = measurements.logits_bytes_per_s;
  device.weight_element_s = measurements.weight_element_s;
  device.kernel_gap_s = measurements.kernel_gap_s;
  device.sustained = 1;
  const auto fp32 = static_cast<size_t>(ProductDtype::kFp32);
  const auto bf16 = static_cast<size_t>(ProductDtype::kBf16);
  device.product_rates[fp32] = measurements.fp32_products;
  device.product_rates[bf16] = measurements.bf16_products;
  device.peak_flops[fp32] = largest(measurements.fp32_products);
  device.peak_flops[bf16] = largest(measurements.bf16_products);
  // The fraction with which the model's attention takes what was measured.
  device.attention.fill(1);
  const AttentionWork unit = {
      .batch = 1,
      .queries = 1,
      .keys = 1e6,
      .heads = 1,
      .head_dim = kCalibrationHeadDim};
  const double flops = 4.0 * unit.keys * static_cast<double>(unit.head_dim);
  Device no_gap = device;
  no_gap.kernel_gap_s = 0;
  const double whole =
      flops / DeviceTime(no_gap, constants)
                  .attention_forward(unit, AttentionKernel::kFlash2);
  device.attention.fill(
      std::clamp(measurements.attention_flops_per_s / whole, 0.001, 1.0));
  set_layer_factors(measurements, constants, machine);
  machine.collectives = measurements.collectives;
  machine.intra = fit_link(measurements, machine);
  if (measurements.overlap.count > 0)
    machine.contention = contention_of(measurements.overlap, machine);
  set_collectives_in_layers(measurements, constants, machine);
  machine.inter = machine.intra;
  machine.inter.bytes_per_s *= measurements.ranks;
  return machine;
}

}  // namespace brigade::machine
