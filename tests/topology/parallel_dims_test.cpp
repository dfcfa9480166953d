#include "brigade/topology/parallel_dims.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ParallelDims, NumbersRanksInPicotronsOrderTpFastest) {
  // torch.arange(24).view(dp=2, pp=2, cp=3, tp=2), written out.
  const ParallelDims dims{.dp = 2, .tp = 2, .pp = 2, .cp = 3};
  int rank = 0;
  for (int dp = 0; dp < 2; ++dp)
    for (int pp = 0; pp < 2; ++pp)
      for (int cp = 0; cp < 3; ++cp)
        for (int tp = 0; tp < 2; ++tp) {
          const Coordinate at{.dp = dp, .tp = tp, .pp = pp, .cp = cp};
          EXPECT_EQ(dims.rank(at), rank);
          EXPECT_EQ(dims.coordinate(rank), at);
          ++rank;
        }
  EXPECT_EQ(rank, dims.world_size());
}

TEST(ParallelDims, ListsTheMembersOfEachAxis) {
  const ParallelDims dims{.dp = 2, .tp = 2, .pp = 2, .cp = 2};
  EXPECT_THAT(dims.members(along_axes({Axis::kTp}), 5), ElementsAre(4, 5));
  EXPECT_THAT(dims.members(along_axes({Axis::kCp}), 5), ElementsAre(5, 7));
  EXPECT_THAT(dims.members(along_axes({Axis::kPp}), 5), ElementsAre(1, 5));
  EXPECT_THAT(dims.members(along_axes({Axis::kDp}), 5), ElementsAre(5, 13));
  EXPECT_THAT(
      dims.members(along_axes(kReplicaAxes), 5), ElementsAre(5, 7, 13, 15));
}

TEST(ParallelDims, GroupsOfAnAxisHoldEachRankOnce) {
  for (const ParallelDims& dims :
       {ParallelDims{},
        ParallelDims{.dp = 3},
        ParallelDims{.dp = 2, .tp = 3, .pp = 2, .cp = 2},
        ParallelDims{.dp = 1, .tp = 1, .pp = 5, .cp = 2}}) {
    for (Axis axis : kAxes) {
      std::multiset<int> seen;
      for (const auto& group : dims.groups({axis})) {
        EXPECT_EQ(static_cast<int>(group.size()), dims[axis]);
        for (size_t i = 0; i < group.size(); ++i) {
          EXPECT_EQ(dims.coordinate(group[i])[axis], static_cast<int>(i));
          EXPECT_EQ(dims.members(along_axes({axis}), group[i]), group);
        }
        seen.insert(group.begin(), group.end());
      }
      EXPECT_EQ(static_cast<int>(seen.size()), dims.world_size());
      EXPECT_EQ(
          static_cast<int>(std::set<int>(seen.begin(), seen.end()).size()),
          dims.world_size());
    }
    for (const auto& group : dims.groups(kReplicaAxes)) {
      EXPECT_EQ(static_cast<int>(group.size()), dims.dp * dims.cp);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
    }
  }
}

TEST(ParallelDims, SaysWhichProductMissesTheWorldSize) {
  std::vector<std::string> problems;
  ParallelDims{.dp = 2, .tp = 3, .pp = 2, .cp = 1}.validate(8, problems);
  EXPECT_THAT(
      problems,
      ElementsAre("[parallel_dims] dp 2 * pp 2 * cp 1 * tp 3 = 12, but world "
                  "size is 8"));
  problems.clear();
  ParallelDims{.dp = 2, .tp = 2, .pp = 2, .cp = 1}.validate(8, problems);
  EXPECT_THAT(problems, ElementsAre());
}

TEST(ParallelDims, NamesEverySizeBelowOne) {
  std::vector<std::string> problems;
  ParallelDims{.dp = 0, .tp = -3, .pp = 1, .cp = 1}.validate(1, problems);
  EXPECT_THAT(
      problems, ElementsAre(HasSubstr("dp is 0"), HasSubstr("tp is -3")));
}

TEST(ParallelDims, RefusesAProductPastAnyWorld) {
  constexpr int kHuge = 1 << 30;
  std::vector<std::string> problems;
  // 2^120 wraps to 0 in 64 bits; the message must not.
  ParallelDims{.dp = kHuge, .tp = kHuge, .pp = kHuge, .cp = kHuge}.validate(
      0, problems);
  EXPECT_THAT(problems, ElementsAre(HasSubstr("= at least")));
}

TEST(ParallelDims, DpTakesTheRanksThatTheOtherAxesLeave) {
  const ParallelDims dims{.dp = 0, .tp = 3, .pp = 2};
  EXPECT_EQ(dims.with_rest_for(12), (ParallelDims{.dp = 2, .tp = 3, .pp = 2}));
  EXPECT_EQ(dims.with_rest_for(14).dp, 2);  // validate() says that it misses
  EXPECT_EQ(dims.with_rest_for(5).dp, 0);
  EXPECT_EQ((ParallelDims{.dp = 7, .tp = 0}.with_rest_for(4).dp), 0);
  const int huge = 1 << 30;
  EXPECT_EQ((ParallelDims{.tp = huge, .pp = huge}.with_rest_for(4).dp), 0);
}

TEST(ParallelDims, AllSizesOfAWorldAreListedOnceTheFastestAxisFirst) {
  for (const int world : {1, 2, 6, 12, 16}) {
    std::vector<ParallelDims> expected;
    for (int tp = 1; tp <= world; ++tp)
      for (int cp = 1; cp <= world; ++cp)
        for (int pp = 1; pp <= world; ++pp)
          for (int dp = 1; dp <= world; ++dp)
            if (dp * pp * cp * tp == world)
              expected.push_back({.dp = dp, .tp = tp, .pp = pp, .cp = cp});
    EXPECT_EQ(all_dims(world), expected) << world;
  }
}

TEST(ParallelDims, SizesOfForeignConfigsAreWithinAnInt) {
  const ParallelDims dims = read_dims([](const std::string& key) -> int64_t {
    return key == "dp_size" ? int64_t{1} << 40 : key == "tp_size" ? -3 : 2;
  });
  EXPECT_EQ(
      dims,
      (ParallelDims{.dp = INT32_MAX, .tp = 1, .pp = 2, .cp = 2, .ep = 2}));
  EXPECT_EQ(dims.rank_count(), 4.0 * INT32_MAX);
}

TEST(ParallelDims, EachAxisIsInBothOrdersWithItsOwnRow) {
  std::set<std::string> keys;
  for (const Axis axis : kNamedAxes) {
    EXPECT_EQ(std::count(kAxes.begin(), kAxes.end(), axis), 1);
    // Its ranks have the same part of the model, or another.
    EXPECT_EQ(
        std::count(kReplicaAxes.begin(), kReplicaAxes.end(), axis) +
            std::count(kModelAxes.begin(), kModelAxes.end(), axis),
        1);
    keys.insert(size_key_of(axis));
    ParallelDims dims;
    dims[axis] = 5;
    EXPECT_EQ(dims.*size_member(axis), 5);
    EXPECT_EQ(dims.world_size(), 5);
    EXPECT_EQ(dims.describe_coordinate(3), std::string(to_string(axis)) + " 3");
  }
  EXPECT_THAT(keys, ElementsAre("cp_size", "dp_size", "pp_size", "tp_size"));
  EXPECT_EQ((ParallelDims{.dp = 2, .tp = 3, .pp = 5, .cp = 7}.replicas()), 14);
}

TEST(ParallelDims, OneRankOfEachStageOfAReplicaLeadsIt) {
  const ParallelDims dims{.dp = 2, .tp = 3, .pp = 2, .cp = 2};
  std::set<std::pair<int, int>> leaders;  // replica and stage
  for (int rank = 0; rank < dims.world_size(); ++rank) {
    const Coordinate at = dims.coordinate(rank);
    EXPECT_EQ(dims.replica(at), at.dp * 2 + at.cp);
    EXPECT_THAT(at.part_colour({7}), ElementsAre(at.pp, at.tp, 7));
    if (at.leads_stage()) {
      EXPECT_TRUE(leaders.insert({dims.replica(at), at.pp}).second) << rank;
    }
  }
  EXPECT_EQ(leaders.size(), 8u);
}

TEST(ParallelDims, PrintsOneLineARank) {
  EXPECT_EQ(
      (ParallelDims{.dp = 1, .tp = 2, .pp = 2, .cp = 1}.table()),
      "dp 1 * pp 2 * cp 1 * tp 2 = 4 ranks\n"
      "rank   dp   pp   cp   tp\n"
      "   0    0    0    0    0\n"
      "   1    0    0    0    1\n"
      "   2    0    1    0    0\n"
      "   3    0    1    0    1\n");
}

TEST(ParallelDims, ExpertsTakeNeighbouringRanksOfDpAndCp) {
  const ParallelDims dims{.dp = 2, .tp = 2, .cp = 2, .ep = 2};
  EXPECT_EQ(dims.world_size(), 8);
  EXPECT_EQ(dims.product(), "dp 2 * pp 1 * cp 2 * tp 2 (ep 2)");
  // Rank 5 is dp 1, cp 0, tp 1.
  EXPECT_EQ(dims.members(dims.expert_parallel(), 5), (std::vector<int>{5, 7}));
  EXPECT_EQ(dims.members(dims.expert_replicas(), 5), (std::vector<int>{1, 5}));
  EXPECT_EQ(dims.expert_rank(dims.coordinate(7)), 1);
}

TEST(ParallelDims, EpDividesDpTimesCp) {
  const ParallelDims dims{.dp = 2, .tp = 3, .ep = 3};
  std::vector<std::string> problems;
  dims.validate(6, problems);
  EXPECT_EQ(
      problems,
      std::vector<std::string>{
          "[parallel_dims] ep 3 does not divide dp 2 * cp 1 = 2: experts are "
          "divided among ranks of dp x cp"});
}

}  // namespace
}  // namespace brigade
