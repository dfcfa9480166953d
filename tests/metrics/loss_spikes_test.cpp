#include "brigade/metrics/loss_spikes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace brigade {
namespace {

// A falling loss with noise of 0.05.
double usual(int step, std::mt19937& random) {
  std::normal_distribution<double> noise(0, 0.05);
  return 2 + 3 * std::exp(-step / 200.0) + noise(random);
}

TEST(LossSpikesTest, AJumpIsFlaggedAndUsualLossesAreNot) {
  std::mt19937 random(3);
  LossSpikes spikes(6);
  for (int step = 0; step < 1000; ++step)
    EXPECT_FALSE(spikes.add(usual(step, random))) << step;
  const auto spike = spikes.add(usual(1000, random) + 1);
  ASSERT_TRUE(spike);
  EXPECT_GT(*spike, 6);
  EXPECT_FALSE(spikes.add(usual(1001, random)));
}

TEST(LossSpikesTest, ALevelThatStaysBecomesTheUsualOne) {
  std::mt19937 random(3);
  LossSpikes spikes(6);
  for (int step = 0; step < 200; ++step)
    spikes.add(usual(1000, random));
  int flagged = 0;
  for (int step = 0; step < 300; ++step)
    flagged += spikes.add(usual(1000, random) + 1) ? 1 : 0;
  EXPECT_GE(flagged, 20);
  EXPECT_LT(flagged, 100);
}

TEST(LossSpikesTest, LossesThatCannotBeJudgedAreNotFlagged) {
  LossSpikes spikes(6);
  for (size_t i = 0; i + 1 < LossSpikes::kLeast; ++i)
    EXPECT_FALSE(spikes.add(1));
  EXPECT_FALSE(spikes.add(1000));
  EXPECT_FALSE(spikes.add(std::numeric_limits<double>::quiet_NaN()));
  LossSpikes off(0);
  for (int i = 0; i < 50; ++i)
    EXPECT_FALSE(off.add(i < 49 ? 1 : 1000));
}

}  // namespace
}  // namespace brigade
