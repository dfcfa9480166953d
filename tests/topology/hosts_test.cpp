#include "brigade/topology/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(WarnOfSplitGroups, GroupsInsideHostsNeedNoWarning) {
  EXPECT_THAT(
      warn_of_split_groups({.dp = 2, .tp = 2}, {"a", "a", "b", "b"}),
      IsEmpty());
  // Data parallel may cross: it communicates once per step.
  EXPECT_THAT(warn_of_split_groups({.dp = 2}, {"a", "b"}), IsEmpty());
}

TEST(WarnOfSplitGroups, CyclicRanksAreToBeNumberedHostByHost) {
  EXPECT_THAT(
      warn_of_split_groups({.dp = 2, .tp = 2}, {"a", "b", "a", "b"}),
      ElementsAre(AllOf(
          HasSubstr("2 of 2 tp groups"),
          HasSubstr("srun -m block"),
          HasSubstr("mpirun --map-by"))));
}

TEST(WarnOfSplitGroups, AGroupLargerThanAHostIsToBeSmaller) {
  EXPECT_THAT(
      warn_of_split_groups({.tp = 2, .cp = 2}, {"a", "b", "c", "d"}),
      ElementsAre(
          AllOf(HasSubstr("2 of 2 tp groups"), HasSubstr("1 ranks at most")),
          HasSubstr("2 of 2 cp groups")));
}

}  // namespace
}  // namespace brigade
