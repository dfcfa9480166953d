#include "brigade/ops/releasable_memory.h"

#include <gtest/gtest.h>

#include <fstream>

namespace brigade::ops {
namespace {

// The bytes of this process that are in memory.
int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * 4096;
}

constexpr int64_t kNumel = 16 << 20;
constexpr int64_t kBytes = kNumel * 4;

TEST(ReleasableMemory, GivesItsPagesBackAndTakesNewOnes) {
  const auto flat = make_releasable(kNumel, torch::kFloat);
  const auto view = flat.narrow(0, 8, 100).view({10, 10});
  const int64_t empty = resident_bytes();
  flat.fill_(1);
  EXPECT_GT(resident_bytes() - empty, kBytes * 9 / 10);
  release(flat);
  EXPECT_TRUE(is_released(flat));
  EXPECT_LT(resident_bytes() - empty, kBytes / 10);
  restore(flat);
  EXPECT_FALSE(is_released(flat));
  flat.fill_(2);
  EXPECT_EQ(view.sum().item<float>(), 200);
}

TEST(ReleasableMemory, ReleasingTwiceIsReleasingOnce) {
  const auto flat = make_releasable(10, torch::kFloat);
  release(flat);
  release(flat);
  restore(flat);
  flat.fill_(1);
  restore(flat);  // has memory: keeps its values
  EXPECT_EQ(flat.sum().item<float>(), 10);
}

// What autograd saved stays what it was, but for the memory.
TEST(ReleasableMemory, ComesAndGoesBetweenForwardAndBackward) {
  const auto flat = make_releasable(6, torch::kFloat);
  flat.copy_(torch::arange(6, torch::kFloat));
  auto weight = torch::empty({2, 3}).requires_grad_();
  weight.set_data(flat.view({2, 3}));
  const auto x = torch::ones({4, 3}).requires_grad_();
  const auto y = x.mm(weight.t()).sum();
  release(flat);
  restore(flat);
  {
    const torch::NoGradGuard no_grad;
    flat.copy_(torch::arange(6, torch::kFloat));
  }
  y.backward();
  EXPECT_TRUE(torch::equal(x.grad()[0], torch::tensor({3.0F, 5.0F, 7.0F})));
}

TEST(ReleasableMemory, MovesWithItsValues) {
  const auto from = make_releasable(1000, torch::kFloat);
  const auto to = make_releasable(1000, torch::kFloat);
  from.fill_(3);
  release(to);
  const void* memory = from.data_ptr();
  move_memory(from, to);
  EXPECT_TRUE(is_released(from));
  EXPECT_EQ(to.data_ptr(), memory);
  EXPECT_EQ(to.sum().item<float>(), 3000);
}

TEST(ReleasableMemory, CanBeEmpty) {
  const auto none = make_releasable(0, torch::kFloat);
  release(none);
  restore(none);
  EXPECT_EQ(none.numel(), 0);
}

}  // namespace
}  // namespace brigade::ops
