#include "brigade/train/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "brigade/base/median.h"

namespace brigade {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;

TEST(StragglerDetectorTest, ASlowRankIsFlaggedOnceAfterThreeWindows) {
  StragglerDetector detector({0, 0, 0, 0});
  const std::vector<double> times = {1, 1.1, 4.8, 0.9};
  EXPECT_THAT(detector.add_window(times), IsEmpty());
  EXPECT_THAT(detector.add_window(times), IsEmpty());
  EXPECT_THAT(
      detector.add_window(times),
      ElementsAre(AllOf(
          Field(&Straggler::rank, 2),
          Field(&Straggler::ratio, DoubleNear(4.8, 1e-9)))));
  for (int window = 0; window < 10; ++window)
    EXPECT_THAT(detector.add_window(times), IsEmpty());
}

TEST(StragglerDetectorTest, OneThatRecoversMayBeFlaggedAgain) {
  StragglerDetector detector({0, 0});
  const auto flagged_in = [&](double time, int windows) {
    size_t count = 0;
    for (int window = 0; window < windows; ++window)
      count += detector.add_window({1, time}).size();
    return count;
  };
  EXPECT_EQ(flagged_in(2, 3), 1U);
  EXPECT_EQ(flagged_in(1, 2), 0U);
  EXPECT_EQ(flagged_in(2, 3), 0U);  // it had not recovered for long enough
  EXPECT_EQ(flagged_in(1, 3), 0U);
  EXPECT_EQ(flagged_in(2, 3), 1U);
}

TEST(StragglerDetectorTest, StagesAreHeldAgainstTheirOwnKind) {
  StragglerDetector unlike({0, 0, 1, 1});
  for (int window = 0; window < 5; ++window)
    EXPECT_THAT(unlike.add_window({1, 1, 4, 4}), IsEmpty());
  // The only one of its kind, against all others.
  StragglerDetector alone({0, 1, 2});
  size_t flagged = 0;
  for (int window = 0; window < 5; ++window) {
    EXPECT_THAT(StragglerDetector({0, 1, 2}).add_window({1, 2, 1}), IsEmpty());
    for (const Straggler& straggler : alone.add_window({1, 2.6, 1})) {
      EXPECT_EQ(straggler.rank, 1);
      EXPECT_NEAR(straggler.ratio, 2.6, 1e-9);
      EXPECT_TRUE(straggler.is_alone);
      ++flagged;
    }
  }
  EXPECT_EQ(flagged, 1U);
}

// Medians of five steps of which each may take up to twice as long.
TEST(StragglerDetectorTest, NoiseIsNoStraggler) {
  std::mt19937 random(7);
  std::exponential_distribution<double> noise(5);
  StragglerDetector detector({0, 0});
  for (int window = 0; window < 2000; ++window) {
    std::vector<double> times;
    for (int rank = 0; rank < 2; ++rank) {
      std::vector<double> steps;
      for (int step = 0; step < StragglerDetector::kSteps; ++step)
        steps.push_back(1 + noise(random));
      times.push_back(upper_median(steps));
    }
    EXPECT_THAT(detector.add_window(times), IsEmpty());
  }
}

TEST(StragglerDetectorTest, OneRankHasNobodyToBeComparedWith) {
  StragglerDetector detector({0});
  for (int window = 0; window < 5; ++window)
    EXPECT_THAT(detector.add_window({1e9}), IsEmpty());
}

}  // namespace
}  // namespace brigade
