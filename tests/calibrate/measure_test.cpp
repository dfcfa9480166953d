#include "brigade/calibrate/measure.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

// Small sizes keep this short. The figures are not checked, since other tests
// run at the same time.
TEST(Measure, FindsEveryRateOfOneRank) {
  const machine::Measurements found = measure_machine(
      {},
      {.seconds_each = 0,
       .tokens = 64,
       .largest_product = 64,
       .layers_bytes = 1 << 16,
       .optimizer_numel = 1024,
       .largest_message_bytes = 4096});
  EXPECT_EQ(found.ranks, 1);
  EXPECT_GT(found.memory_bytes, 1 << 20);
  EXPECT_GT(found.reserved_bytes, 1 << 20);
  EXPECT_LT(found.reserved_bytes, found.memory_bytes);
  ASSERT_EQ(found.fp32_products.size(), 2u);
  EXPECT_EQ(found.fp32_products[0].size, 32);
  EXPECT_EQ(found.bf16_products[1].size, 64);
  EXPECT_TRUE(found.all_reduces.empty());
  const machine::Machine machine = machine::machine_of(found, {});
  for (double rate :
       {found.fp32_products[0].flops_per_s,
        found.bf16_products[1].flops_per_s,
        found.attention_flops_per_s,
        found.memory_bytes_per_s,
        found.elementwise_bytes_per_s,
        found.elementwise_backward_bytes_per_s,
        found.logits_bytes_per_s,
        machine.intra.bytes_per_s})
    EXPECT_GT(rate, 1e3);
  EXPECT_GE(found.taken_by_others, 0);
  EXPECT_LE(found.taken_by_others, 1);
  EXPECT_GT(found.layer.forward_s, 0);
  EXPECT_GT(found.layer.backward_s, 0);
  EXPECT_GT(found.recomputed_layer.backward_s, 0);
  EXPECT_TRUE(found.shared_layers.empty());
  EXPECT_GE(found.weight_element_s, 0);
  EXPECT_GT(found.kernel_gap_s, 0);
}

}  // namespace
}  // namespace brigade
