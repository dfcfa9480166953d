#include "brigade/machine/device_time.h"

#include <gtest/gtest.h>

namespace brigade::machine {
namespace {

// 100 units of 1 TFLOP/s each, nothing lost.
DeviceTime device(double memory_bytes_per_s = 1e12) {
  Device device;
  device.name = "round";
  device.memory_bytes_per_s = memory_bytes_per_s;
  device.compute_units = 100;
  device.peak_flops[static_cast<size_t>(ProductDtype::kBf16)] = 100e12;
  device.sustained = 1;
  device.attention = {0.5, 0.5, 0.5};
  device.kernel_gap_s = 0;
  Constants constants;
  constants.tile_overhead_s = 0;
  constants.memory_efficiency = 1;
  return {device, constants};
}

TEST(DeviceTime, AProductThatFillsEveryWaveTakesItsFlops) {
  // 10 x 20 tiles of 256 x 128: two waves of 100.
  const Product product = {2560, 2560, 4096};
  EXPECT_NEAR(
      device().product(product, ProductDtype::kBf16),
      product.flops() / 100e12,
      1e-12);
}

TEST(DeviceTime, OneTileMoreIsAWaveMore) {
  // Rows of the last wave that do not fill it cost as much as those that do.
  const double full = device().product({2560, 2560, 4096}, ProductDtype::kBf16);
  const double more = device().product({2561, 2560, 4096}, ProductDtype::kBf16);
  EXPECT_GT(more, 1.04 * full);
}

TEST(DeviceTime, AThinProductTakesTheTimeToMoveItsOperands) {
  const double seconds =
      device(1e11).product({1, 8192, 8192}, ProductDtype::kBf16);
  EXPECT_NEAR(seconds, 2.0 * (8192.0 * 8192 + 2 * 8192) / 1e11, 1e-9);
}

TEST(DeviceTime, RowsThatAreNoWholeVectorsAreSlower) {
  EXPECT_GT(
      device().product({2560, 2560, 4095}, ProductDtype::kBf16),
      1.8 * device().product({2560, 2560, 4096}, ProductDtype::kBf16));
}

TEST(DeviceTime, MoreWorkNeverTakesLess) {
  for (int64_t k = 64; k <= 4096; k *= 2) {
    EXPECT_LE(
        device().product({512, 512, k}, ProductDtype::kBf16),
        device().product({512, 512, 2 * k}, ProductDtype::kBf16));
    EXPECT_LE(
        device().product({k, 512, 512}, ProductDtype::kBf16),
        device().product({2 * k, 512, 512}, ProductDtype::kBf16));
  }
}

TEST(DeviceTime, AttentionTakesItsFlopsAndBackwardFiveHalves) {
  const AttentionWork work = {
      .batch = 2, .queries = 1024, .keys = 512.5, .heads = 8, .head_dim = 128};
  const double flops = 4.0 * 2 * 1024 * 512.5 * 8 * 128;
  const DeviceTime time = device();
  EXPECT_NEAR(
      time.attention_forward(work, AttentionKernel::kFlash2),
      flops / 50e12,
      1e-12);
  EXPECT_NEAR(
      time.attention_backward(work, AttentionKernel::kFlash2),
      2.5 * flops / 50e12,
      1e-12);
}

}  // namespace
}  // namespace brigade::machine
