// Only a write to the memory of a watched weight counts as a step.
#include "brigade/data_parallel/write_watch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace brigade {
namespace {

// Frozen weights may follow trained ones in the same memory.
TEST(WriteWatch, SeesAPartOfAWeightAndNotItsNeighbour) {
  const torch::Tensor memory = torch::zeros({8});
  int steps = 0;
  WriteWatch watch;
  watch.begin(
      {}, {memory.narrow(0, 2, 2), memory.narrow(0, 4, 1)}, [&] { ++steps; });
  memory.narrow(0, 0, 2).add_(1);
  memory.narrow(0, 5, 3).add_(1);
  EXPECT_FALSE(watch.has_seen_weights());
  EXPECT_EQ(steps, 0);
  memory.narrow(0, 3, 3).add_(1);
  EXPECT_TRUE(watch.has_seen_weights());
  memory.add_(1);
  EXPECT_EQ(steps, 1);
}

TEST(WriteWatch, TellsGradientsFromWeights) {
  const torch::Tensor memory = torch::zeros({8});
  WriteWatch watch;
  watch.begin({memory.narrow(0, 0, 4)}, {memory.narrow(0, 4, 4)}, [] {});
  memory.narrow(0, 1, 1).zero_();
  EXPECT_EQ(watch.seen(), WriteWatch::Seen::kGradients);
  torch::Tensor weight = memory.narrow(0, 4, 4);
  torch::add_out(weight, torch::ones({4}), torch::ones({4}));
  EXPECT_EQ(watch.seen(), WriteWatch::Seen::kWeights);
}

TEST(WriteWatch, ANotedStepIsReportedOnce) {
  int steps = 0;
  WriteWatch watch;
  watch.begin({}, {torch::zeros({2})}, [&] { ++steps; });
  watch.note_step();
  watch.note_step();
  EXPECT_EQ(steps, 1);
  EXPECT_EQ(watch.seen(), WriteWatch::Seen::kStep);
}

}  // namespace
}  // namespace brigade
