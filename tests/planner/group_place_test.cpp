#include <gtest/gtest.h>

#include <algorithm>

#include "brigade/planner/training.h"

namespace brigade::planner {
namespace {

using machine::GroupPlace;

// Ranks: dp, pp, cp, tp, tp fastest; 8 on a node.
TEST(GroupPlace, ExpertGroupsLieWhereTheirRanksDo) {
  Training training;
  training.machine.devices_per_node = 8;
  const auto expert_parallel = [&](const ParallelDims& dims) {
    return training.place_expert_parallel(dims);
  };
  const auto replicas = [&](const ParallelDims& dims) {
    return training.place_expert_replicas(dims);
  };
  ParallelDims dims = {.dp = 16, .tp = 2, .ep = 4};
  EXPECT_EQ(expert_parallel(dims), (GroupPlace{4, 4}));
  EXPECT_EQ(replicas(dims), (GroupPlace{4, 1}));
  dims = {.dp = 16, .tp = 2, .ep = 16};
  EXPECT_EQ(expert_parallel(dims), (GroupPlace{16, 4}));
  EXPECT_EQ(replicas(dims), (GroupPlace{1, 1}));
  dims = {.dp = 16, .ep = 2};
  EXPECT_EQ(expert_parallel(dims), (GroupPlace{2, 2}));
  EXPECT_EQ(replicas(dims), (GroupPlace{8, 4}));
  // Neighbours on cp first.
  dims = {.dp = 4, .pp = 8, .cp = 4, .ep = 8};
  EXPECT_EQ(expert_parallel(dims), (GroupPlace{8, 4}));
}

TEST(GroupPlace, MatchesTheGroupsOfTheGrid) {
  Training training;
  training.machine.devices_per_node = 8;
  const int per_node = training.machine.devices_per_node;
  for (const ParallelDims& dims :
       {ParallelDims{.dp = 4, .tp = 4, .pp = 2, .cp = 2},
        ParallelDims{.dp = 16, .tp = 1, .pp = 4, .cp = 1},
        ParallelDims{.dp = 2, .tp = 8, .pp = 2, .cp = 2}}) {
    for (Axis axis : kAxes) {
      int most = 0;
      for (const std::vector<int>& group : dims.groups({axis})) {
        int on_first = 0;
        for (int rank : group)
          on_first += rank / per_node == group.front() / per_node ? 1 : 0;
        most = std::max(most, on_first);
      }
      const GroupPlace place = training.place(dims, axis);
      EXPECT_EQ(place.ranks, dims[axis]);
      EXPECT_EQ(place.ranks_per_node, most)
          << dims.product() << " " << to_string(axis);
    }
  }
}

}  // namespace
}  // namespace brigade::planner
