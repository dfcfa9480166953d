#include "brigade/schedule/outliers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace brigade {
namespace {

using ::testing::ElementsAre;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Outliers, AreFarAboveTheMedianOfTheOthers) {
  EXPECT_THAT(
      find_outliers({1, 1.2, 9, 0.9}, 4),
      ElementsAre(false, false, true, false));
  EXPECT_THAT(find_outliers({1, 4}, 4), ElementsAre(false, false));
  EXPECT_THAT(find_outliers({1, 4.01}, 4), ElementsAre(false, true));
  // Small ones do no harm.
  EXPECT_THAT(find_outliers({1, 1, 0}, 4), ElementsAre(false, false, false));
}

TEST(Outliers, AreWhatIsNotFiniteAndNeverTheOnlyOneThatIs) {
  EXPECT_THAT(
      find_outliers({kNan, 1, kInfinity, 1.5}, 2),
      ElementsAre(true, false, true, false));
  EXPECT_THAT(find_outliers({kNan, 100}, 2), ElementsAre(true, false));
  EXPECT_THAT(
      find_outliers({kNan, 1, 100}, kInfinity),
      ElementsAre(true, false, false));
  EXPECT_THAT(find_outliers({kNan, kNan}, 2), ElementsAre(true, true));
  EXPECT_THAT(find_outliers({0, 0, 0}, 2), ElementsAre(false, false, false));
  EXPECT_THAT(find_outliers({5}, 2), ElementsAre(false));
}

}  // namespace
}  // namespace brigade
