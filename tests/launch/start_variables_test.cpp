// The variables that a rank's process starts with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "brigade/launch/cpu_share.h"
#include "brigade/launch/huge_pages.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using Map = std::map<std::string, std::string, std::less<>>;

GetEnv in(Map map) {
  return [map](std::string_view name) -> std::optional<std::string> {
    const auto found = map.find(name);
    if (found == map.end())
      return std::nullopt;
    return found->second;
  };
}

TEST(HugePageVariable, AsksGlibcForHugePages) {
  EXPECT_THAT(
      huge_page_variable(in({})),
      ::testing::Optional(Pair("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")));
}

TEST(HugePageVariable, KeepsTheUsersOtherTunables) {
  EXPECT_THAT(
      huge_page_variable(in({{"GLIBC_TUNABLES", "glibc.malloc.check=3"}})),
      ::testing::Optional(Pair(
          "GLIBC_TUNABLES", "glibc.malloc.check=3:glibc.malloc.hugetlb=1")));
}

TEST(HugePageVariable, LeavesTheUsersChoiceAlone) {
  EXPECT_EQ(
      huge_page_variable(in({{"GLIBC_TUNABLES", "glibc.malloc.hugetlb=0"}})),
      std::nullopt);
}

TEST(ThreadVariables, FillInWhatNobodySet) {
  EXPECT_THAT(
      thread_variables(in({}), 3, std::nullopt),
      ElementsAre(
          Pair("OMP_NUM_THREADS", "3"), Pair("OPENBLAS_NUM_THREADS", "3")));
  EXPECT_THAT(
      thread_variables(in({{"OMP_NUM_THREADS", "5"}}), 3, std::nullopt),
      ElementsAre(Pair("OPENBLAS_NUM_THREADS", "5")));
}

TEST(ThreadVariables, TheConfigsNumberWins) {
  EXPECT_THAT(
      thread_variables(in({{"OMP_NUM_THREADS", "5"}}), 3, 2),
      ElementsAre(
          Pair("OMP_NUM_THREADS", "2"), Pair("OPENBLAS_NUM_THREADS", "2")));
}

}  // namespace
}  // namespace brigade
