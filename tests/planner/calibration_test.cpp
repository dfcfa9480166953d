#include "brigade/planner/calibration.h"

#include <gtest/gtest.h>

#include "brigade/planner/collective_time.h"
#include "brigade/planner/device_time.h"
#include "brigade/planner/layer_time.h"

namespace brigade::planner {
namespace {

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
      .contention = 0.9};
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
  // Halfway in the logarithm of the size: halfway in that of the rate.
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
  EXPECT_EQ(machine.contention, 0.9);
  EXPECT_EQ(machine.devices_per_node, 4);
}

constexpr LayerSample kLayer = {
    .hidden = 512,
    .heads = 8,
    .intermediate = 1536,
    .sequence_tokens = 256,
    .sequences = 4};

// Of kLayer.
PartTime predicted(
    const Measurements& measurements,
    const Layout& layout,
    Machine* machine = nullptr) {
  Training training;
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
  layout.recompute = Recompute::kFull;
  const PartTime again = predicted(measurements, layout);
  EXPECT_NEAR(
      again.forward.total() + backward_of(again),
      1.2 * forward + 1.5 * backward,
      1e-9 * backward);
}

// Whatever tensor parallel takes beyond computation and collectives is in the
// prediction, in both layouts of tokens.
TEST(Calibration, ALayerOfTensorParallelTakesWhatWasMeasured) {
  Measurements measurements = measured();
  for (int ranks : {2, 4}) {
    for (int i = 0; i < kCollectives; ++i) {
      for (int64_t bytes : {1 << 12, 1 << 18, 1 << 24})
        measurements.collectives.push_back(
            {static_cast<Collective>(i),
             ranks,
             bytes,
             1e-4 + static_cast<double>(bytes) * 1e-9});
    }
  }
  Layout layout;
  layout.micro_batch = 4;
  layout.dims.tp = 2;
  for (TokenLayout tokens : {TokenLayout::kReplicated, TokenLayout::kSharded}) {
    layout.tokens = tokens;
    const PartTime before = predicted(measurements, layout);
    LayerSample sample = kLayer;
    sample.tp = 2;
    sample.tokens = tokens;
    sample.forward_s = 1.5 * before.forward.total();
    sample.backward_s = 1.5 * backward_of(before);
    measurements.parallel_layers.push_back(sample);
    const PartTime after = predicted(measurements, layout);
    EXPECT_NEAR(
        after.forward.total() + backward_of(after),
        sample.forward_s + sample.backward_s,
        1e-9);
    EXPECT_DOUBLE_EQ(after.forward.computation(), before.forward.computation());
  }
  // Samples of other group sizes stay as they were measured.
  const Machine machine = machine_of(measurements, {});
  for (size_t i = 0; i < machine.collectives.size(); ++i) {
    const CollectiveSample& found = machine.collectives[i];
    const CollectiveSample& given = measurements.collectives[i];
    if (given.ranks == 4)
      EXPECT_EQ(found, given);
    else
      EXPECT_GT(found.seconds, given.seconds);
  }
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
}  // namespace brigade::planner
