#include "brigade/param/param.h"

#include <gtest/gtest.h>

namespace brigade {
namespace {

TEST(TakeShard, IsTheCutAndZerosUpToItsShape) {
  const auto full = torch::arange(10).view({5, 2});
  EXPECT_TRUE(torch::equal(take_shard(full, {}, {5, 2}), full));
  EXPECT_TRUE(torch::equal(
      take_shard(full, {0, 1, 3}, {2, 2}), torch::tensor({{2, 3}, {4, 5}})));
  EXPECT_TRUE(torch::equal(
      take_shard(full, {0, 4, 5}, {3, 2}),
      torch::tensor({{8, 9}, {0, 0}, {0, 0}})));
}

TEST(Param, FindsAStateByItsName) {
  Param param;
  param.states = {{"first", torch::ones({1})}, {"second", torch::zeros({2})}};
  EXPECT_EQ(param.state("second").numel(), 2);
  EXPECT_FALSE(param.state("third").defined());
}

TEST(Param, OneRankOfTheModelCountsIt) {
  Param param;
  EXPECT_TRUE(param.is_counted_here());
  param.cut.is_first_replica = false;
  EXPECT_FALSE(param.is_counted_here());
  param.cut.is_first_replica = true;
  param.is_copy_for_head = true;
  EXPECT_FALSE(param.is_counted_here());
}

}  // namespace
}  // namespace brigade
