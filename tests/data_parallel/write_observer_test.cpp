// Only a write to the memory of an observed weight counts as a step.
#include "brigade/data_parallel/write_observer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace brigade {
namespace {

// Frozen weights may follow trained ones in the same memory.
TEST(WriteObserver, SeesAPartOfAWeightAndNotItsNeighbour) {
  const torch::Tensor memory = torch::zeros({8});
  int steps = 0;
  WriteObserver observer;
  observer.begin(
      {}, {memory.narrow(0, 2, 2), memory.narrow(0, 4, 1)}, [&] { ++steps; });
  memory.narrow(0, 0, 2).add_(1);
  memory.narrow(0, 5, 3).add_(1);
  EXPECT_FALSE(observer.has_seen_weights());
  EXPECT_EQ(steps, 0);
  memory.narrow(0, 3, 3).add_(1);
  EXPECT_TRUE(observer.has_seen_weights());
  memory.add_(1);
  EXPECT_EQ(steps, 1);
}

TEST(WriteObserver, TellsGradientsFromWeights) {
  const torch::Tensor memory = torch::zeros({8});
  WriteObserver observer;
  observer.begin({memory.narrow(0, 0, 4)}, {memory.narrow(0, 4, 4)}, [] {});
  memory.narrow(0, 1, 1).zero_();
  EXPECT_EQ(observer.seen(), WriteObserver::Seen::kGradients);
  torch::Tensor weight = memory.narrow(0, 4, 4);
  torch::add_out(weight, torch::ones({4}), torch::ones({4}));
  EXPECT_EQ(observer.seen(), WriteObserver::Seen::kWeights);
}

TEST(WriteObserver, ANotedStepIsReportedOnce) {
  int steps = 0;
  WriteObserver observer;
  observer.begin({}, {torch::zeros({2})}, [&] { ++steps; });
  observer.note_step();
  observer.note_step();
  EXPECT_EQ(steps, 1);
  EXPECT_EQ(observer.seen(), WriteObserver::Seen::kStep);
}

}  // namespace
}  // namespace brigade
