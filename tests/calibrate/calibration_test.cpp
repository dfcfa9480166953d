#include "brigade/calibrate/calibration.h"

#include <gtest/gtest.h>

#include "brigade/machine/collective_time.h"
#include "brigade/machine/device_time.h"
#include "brigade/planner/layer_time.h"

namespace brigade::machine {
namespace {

using planner::Layout;
using planner::PartTime;

Measurements measured() {
  return {
      .name = "two cores",
      .ranks = 4,
      .memory_bytes = 8'000'000'000,
      .reserved_bytes = 200'000'000,
      .fp32_products = {{64, 1e10}, {1024, 4e10}},
      .bf16_products = {{64, 2e10}, {1024, 8e10}},
      .attention_flops_per_s = 3e10,
      .memory_bytes_per_s = 5e9,
      .elementwise_bytes_per_s = 2e9,
      .logits_bytes_per_s = 1e9,
      .weight_element_s = 1e-10,
      .kernel_gap_s = 1e-5,
      .device_spread = 0.01};
}

TEST(Calibration, TheMachinePredictsWhatWasMeasured) {
  const Constants constants;
  const Machine machine = machine_of(measured(), constants);
  const DeviceTime device(machine.device, constants);
  const double gap = 1e-5;
  const auto flops_per_s = [&](int64_t size, ProductDtype dtype) {
    const Product product = {4096, size, size};
    return product.flops() / (device.product(product, dtype) - gap);
  };
  EXPECT_NEAR(flops_per_s(64, ProductDtype::kFp32), 1e10, 1);
  EXPECT_NEAR(flops_per_s(1024, ProductDtype::kFp32), 4e10, 1);
  // The rate is interpolated between sizes, both on log scales.
  EXPECT_NEAR(flops_per_s(256, ProductDtype::kBf16), 4e10, 1);
  EXPECT_NEAR(flops_per_s(16, ProductDtype::kBf16), 2e10, 1);
  EXPECT_NEAR(flops_per_s(4096, ProductDtype::kBf16), 8e10, 1);
  EXPECT_NEAR(device.weight(1000, 2000), 2e-4, 1e-12);
  EXPECT_NEAR(device.memory(5e9) - gap, 1, 1e-12);
  EXPECT_NEAR(device.elementwise(2e9) - gap, 1, 1e-12);
  EXPECT_NEAR(device.logits(1e9) - gap, 1, 1e-12);
  const AttentionWork work = {
      .batch = 2,
      .queries = 512,
      .keys = 256,
      .heads = 8,
      .head_dim = kCalibrationHeadDim};
  const double seconds =
      device.attention_forward(work, AttentionKernel::kFlash2) +
      device.attention_backward(work, AttentionKernel::kFlash2);
  const double flops = 3.5 * 4 * 2 * 512 * 256 * 8 * 64;
  EXPECT_NEAR(flops / (seconds - 3.5 * gap), 3e10, 1);
  EXPECT_EQ(machine.contention, std::nullopt);  // was not measured
  EXPECT_EQ(machine.device_spread, 0.01);
  EXPECT_EQ(machine.devices_per_node, 4);
}

constexpr LayerSample kLayer = {
    .hidden = 512,
    .heads = 8,
    .intermediate = 1536,
    .sequence_tokens = 256,
    .sequences = 4};

// The predicted time of kLayer.
PartTime predicted(
    const Measurements& measurements,
    const Layout& layout,
    Machine* machine = nullptr) {
  planner::Training training;
  training.machine = machine_of(measurements, {});
  training.batch = {kLayer.sequence_tokens, kLayer.sequences};
  training.shape.layers = 1;
  training.shape.hidden = kLayer.hidden;
  training.shape.heads = training.shape.kv_heads = kLayer.heads;
  training.shape.head_dim = kLayer.hidden / kLayer.heads;
  training.shape.intermediate = kLayer.intermediate;
  if (machine != nullptr)
    *machine = training.machine;
  return layer_time(training, layout, 0);
}

double backward_of(const PartTime& time) {
  return time.backward_input.total() + time.backward_weight.total();
}

TEST(Calibration, AWholeLayerTakesWhatWasMeasured) {
  Measurements measurements = measured();
  measurements.layer = kLayer;
  Layout layout;
  layout.micro_batch = 4;
  Machine machine;
  const PartTime parts = predicted(measurements, layout, &machine);
  EXPECT_EQ(machine.device.forward_factor, 1);
  const double forward = parts.forward.total();
  const double backward = backward_of(parts);
  measurements.layer.forward_s = 1.25 * forward;
  measurements.layer.backward_s = 0.75 * backward;
  const PartTime whole = predicted(measurements, layout);
  EXPECT_NEAR(whole.forward.total(), 1.25 * forward, 1e-9 * forward);
  EXPECT_NEAR(backward_of(whole), 0.75 * backward, 1e-9 * backward);

  measurements.recomputed_layer = measurements.layer;
  measurements.recomputed_layer.forward_s = 1.2 * forward;
  measurements.recomputed_layer.backward_s = 1.5 * backward;
  layout.recompute = planner::Recompute::kFull;
  const PartTime again = predicted(measurements, layout);
  EXPECT_NEAR(
      again.forward.total() + backward_of(again),
      1.2 * forward + 1.5 * backward,
      1e-9 * backward);
}

LayerSample with_seconds(LayerSample sample, double forward, double backward) {
  sample.forward_s = forward;
  sample.backward_s = backward;
  return sample;
}

// Every collective but exchanges takes 1e-4 s and 1e-9 s per byte.
void add_collectives(int ranks, Measurements& measurements) {
  for (Collective collective :
       {Collective::kAllReduce,
        Collective::kReduceScatter,
        Collective::kAllGather}) {
    for (int64_t bytes : {1 << 12, 1 << 18, 1 << 24})
      measurements.collectives.push_back(
          {collective, ranks, bytes, 1e-4 + static_cast<double>(bytes) * 1e-9});
  }
}

// The time of a shared layer beyond its computation is its collectives' time.
// Its computation is measured too, at a fifth more than its parts.
TEST(Calibration, ALayerThatRanksShareTakesWhatWasMeasured) {
  Measurements measurements = measured();
  add_collectives(2, measurements);
  add_collectives(4, measurements);
  Layout single;
  single.micro_batch = 4;
  const PartTime alone = predicted(measurements, single);
  const LayerSample slower = with_seconds(
      kLayer, 1.2 * alone.forward.total(), 1.2 * backward_of(alone));
  const auto expect_measured = [&](const Layout& layout, LayerSample sample) {
    const PartTime before = predicted(measurements, layout);
    const double computation = before.forward.computation() +
                               before.backward_input.computation() +
                               before.backward_weight.computation();
    sample.forward_s = computation;
    sample.backward_s = computation;
    measurements.shared_layers.push_back({sample, slower});
    const PartTime after = predicted(measurements, layout);
    // Twice the computation was measured: 1.2 times is computation, and the
    // rest collectives.
    EXPECT_NEAR(
        after.forward.total() + backward_of(after), 1.8 * computation, 1e-9);
    EXPECT_DOUBLE_EQ(after.forward.computation(), before.forward.computation());
  };
  Layout shared = single;
  shared.dims.tp = 2;
  LayerSample sample = kLayer;
  sample.tp = 2;
  for (TokenLayout tokens : {TokenLayout::kReplicated, TokenLayout::kSharded}) {
    shared.tokens = sample.tokens = tokens;
    expect_measured(shared, sample);
  }
}

TEST(Calibration, ALayerOfContextParallelTakesWhatWasMeasured) {
  Measurements measurements = measured();
  Layout layout;
  layout.micro_batch = 4;
  const PartTime alone = predicted(measurements, layout);
  LayerSample single = kLayer;
  single.sequence_tokens /= 2;
  LayerSample sample = kLayer;
  sample.cp = 2;
  for (int64_t shorter : {2, 1}) {
    LayerSample shared = sample;
    shared.sequence_tokens /= shorter;
    LayerSample reference = single;
    reference.sequence_tokens /= shorter;
    measurements.shared_layers.push_back(
        {with_seconds(shared, 2, 2), with_seconds(reference, 1e-9, 1e-9)});
  }
  layout.dims.cp = 2;
  const PartTime time = predicted(measurements, layout);
  // One exchange each way, as the ring of two has.
  EXPECT_NEAR(time.forward.cp, 2, 1e-6);
  EXPECT_NEAR(time.backward_input.cp, 2, 1e-6);
  EXPECT_LT(time.forward.computation(), alone.forward.computation());
}

// Collectives of other groups keep their times; a longer one adds the time of
// its further bytes to the measured one.
TEST(Calibration, LayersReplaceTheCollectivesThatTheyMeasured) {
  Measurements measurements = measured();
  add_collectives(2, measurements);
  add_collectives(4, measurements);
  LayerSample shared = kLayer;
  shared.tp = 2;
  measurements.shared_layers.push_back(
      {with_seconds(shared, 1, 1), with_seconds(kLayer, 1e-9, 1e-9)});
  const Machine machine = machine_of(measurements, {});
  // 1 MiB takes half a second, instead of 1e-4 + 1 MiB * 1e-9.
  const std::vector<CollectiveSample> expected = {
      {Collective::kAllReduce, 2, 1 << 20, 0.5},
      {Collective::kAllReduce, 2, 1 << 24, 0.5 + 15.0 * (1 << 20) * 1e-9}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(machine.collectives[i].bytes, expected[i].bytes);
    EXPECT_NEAR(machine.collectives[i].seconds, expected[i].seconds, 1e-6);
  }
  const std::vector<CollectiveSample> rest(
      machine.collectives.begin() + 2, machine.collectives.end());
  const std::vector<CollectiveSample> given(
      measurements.collectives.begin() + 3, measurements.collectives.end());
  EXPECT_EQ(rest, given);
}

TEST(Calibration, ContentionIsWhatComputationLostOfTheLinksTime) {
  Measurements measurements = measured();
  for (int64_t bytes : {1 << 18, 1 << 24})
    measurements.all_reduces.push_back(
        {4, bytes, 1e-3 + static_cast<double>(bytes) * 1e-9});
  measurements.overlap = {4, 1 << 24, 5, 0};
  EXPECT_EQ(machine_of(measurements, {}).contention, 0);
  const double each = 1e-3 + (1 << 24) * 1e-9;
  measurements.overlap.seconds = 5 * each / 2;
  EXPECT_NEAR(machine_of(measurements, {}).contention.value(), 0.5, 1e-6);
  measurements.overlap.seconds = 1;
  EXPECT_EQ(machine_of(measurements, {}).contention, 1);
}

TEST(Calibration, TheLinkFitsTheAllReduces) {
  Machine truth;
  truth.devices_per_node = 4;
  truth.intra = {3e9, 7e-6, 1};
  Measurements measurements = measured();
  for (int ranks : {2, 4}) {
    for (int64_t bytes : {4096, 1 << 18, 1 << 24})
      measurements.all_reduces.push_back(
          {ranks,
           bytes,
           collective_seconds(
               truth,
               {ranks, ranks},
               Collective::kAllReduce,
               Algorithm::kRing,
               static_cast<double>(bytes))});
  }
  const Link link = machine_of(measurements, {}).intra;
  EXPECT_NEAR(link.bytes_per_s * link.efficiency, 3e9, 3e3);
  EXPECT_NEAR(link.latency_s, 7e-6, 1e-11);
}

}  // namespace
}  // namespace brigade::machine
