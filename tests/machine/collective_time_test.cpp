// Collectives against alpha-beta formulas written out.
#include "brigade/machine/collective_time.h"

#include <gtest/gtest.h>

#include <cmath>

namespace brigade::machine {
namespace {

constexpr double kLaunch = 8.4e-6;

// Round numbers: 100 GB/s inside, 80 GB/s for a node of 8.
Machine machine() {
  Machine machine = find_machine("a100-80");
  machine.devices_per_node = 8;
  machine.intra = {100e9, 2e-6, 1};
  machine.inter = {80e9, 10e-6, 1};
  return machine;
}

TEST(CollectiveTime, ARingInsideANodeIsAlphaBeta) {
  const double bytes = 1e9;
  for (int n : {2, 3, 8}) {
    const GroupPlace place = {n, n};
    const double half = (n - 1.0) / n * bytes / 100e9 + (n - 1) * 2e-6;
    EXPECT_NEAR(
        collective_seconds(
            machine(), place, Collective::kAllReduce, Algorithm::kRing, bytes),
        kLaunch + 2 * half,
        1e-12);
    EXPECT_NEAR(
        collective_seconds(
            machine(),
            place,
            Collective::kReduceScatter,
            Algorithm::kRing,
            bytes),
        kLaunch + half,
        1e-12);
  }
}

TEST(CollectiveTime, ARingAcrossNodesHasItsMembersShareOfTheNetwork) {
  // 4 nodes, 2 members on each: 2 of 8 shares of 80 GB/s are 20 GB/s.
  const GroupPlace place = {8, 2};
  const double bytes = 4e8;
  EXPECT_NEAR(
      collective_seconds(
          machine(), place, Collective::kAllGather, Algorithm::kRing, bytes),
      kLaunch + 7.0 / 8 * bytes / 20e9 + 3 * 2e-6 + 4 * 10e-6,
      1e-12);
}

TEST(CollectiveTime, AnAllToAllTakesItsSlowerLink) {
  const double bytes = 8e8;
  // 3 of 4 parts to peers of the node.
  EXPECT_NEAR(
      all_to_all_seconds(machine(), {4, 4}, bytes),
      kLaunch + 2e-6 + 3.0 / 4 * bytes / 100e9,
      1e-12);
  // 8 of 16 parts leave the node, over an eighth of its 80 GB/s.
  EXPECT_NEAR(
      all_to_all_seconds(machine(), {16, 8}, bytes),
      kLaunch + 10e-6 + 8.0 / 16 * bytes / 10e9,
      1e-12);
  EXPECT_EQ(all_to_all_seconds(machine(), {1, 1}, bytes), 0);
}

TEST(CollectiveTime, ActivationsTakeWhatWasMeasured) {
  Machine measured = machine();
  measured.collectives = {
      {Collective::kAllReduce, 2, 1000, 1e-3},
      {Collective::kAllReduce, 2, 3000, 2e-3},
      {Collective::kAllReduce, 2, 4000, 5e-3},
      {Collective::kAllGather, 2, 1000, 7e-3}};
  const auto seconds = [&](Collective collective, GroupPlace place, double n) {
    return sampled_seconds(measured, place, collective, n);
  };
  const auto all_reduce = Collective::kAllReduce;
  EXPECT_DOUBLE_EQ(seconds(all_reduce, {2, 2}, 10), 1e-3);
  EXPECT_DOUBLE_EQ(seconds(all_reduce, {2, 2}, 2000), 1.5e-3);
  EXPECT_DOUBLE_EQ(seconds(all_reduce, {2, 2}, 3500), 3.5e-3);
  EXPECT_DOUBLE_EQ(seconds(all_reduce, {2, 2}, 6000), 11e-3);
  EXPECT_EQ(seconds(all_reduce, {1, 1}, 6000), 0);
  // Another number of ranks, two nodes, one sample alone: as the links say.
  for (const auto& [collective, place] :
       {std::pair(all_reduce, GroupPlace{4, 4}),
        std::pair(all_reduce, GroupPlace{2, 1}),
        std::pair(Collective::kAllGather, GroupPlace{2, 2})})
    EXPECT_DOUBLE_EQ(
        seconds(collective, place, 2000),
        quickest_collective(measured, place, collective, 2000));
}

TEST(CollectiveTime, ATreeTakesLogarithmicallyManyHops) {
  const GroupPlace place = {64, 8};
  EXPECT_NEAR(
      collective_seconds(
          machine(), place, Collective::kAllReduce, Algorithm::kTree, 1e6),
      kLaunch + 2 * 1e6 / 80e9 + 2 * 7 * 2e-6 + 2 * std::log2(8) * 10e-6,
      1e-12);
}

TEST(CollectiveTime, TheQuickestIsATreeForFewBytesAndARingForMany) {
  const GroupPlace place = {1024, 8};
  const auto tree = [&](double bytes) {
    return collective_seconds(
        machine(), place, Collective::kAllReduce, Algorithm::kTree, bytes);
  };
  const auto quickest = [&](double bytes) {
    return quickest_collective(machine(), place, Collective::kAllReduce, bytes);
  };
  EXPECT_EQ(quickest(1e3), tree(1e3));
  EXPECT_LT(quickest(1e12), tree(1e12));
}

TEST(CollectiveTime, HierarchicalSendsShardsOverTheNetwork) {
  // Inside: ring of 8 over S; across: ring of 4 over S / 8 at one share.
  const GroupPlace place = {32, 8};
  const double bytes = 8e8;
  const double inside = 7.0 / 8 * bytes / 100e9 + 7 * 2e-6;
  const double across = 3.0 / 4 * (bytes / 8) / 10e9 + 4 * 10e-6;
  EXPECT_NEAR(
      collective_seconds(
          machine(),
          place,
          Collective::kAllReduce,
          Algorithm::kHierarchical,
          bytes),
      2 * (inside + across + kLaunch),
      1e-12);
}

TEST(CollectiveTime, SizeOneTakesNoTime) {
  EXPECT_EQ(
      quickest_collective(machine(), {1, 1}, Collective::kAllReduce, 1e9), 0);
  EXPECT_EQ(send_seconds(machine(), {1, 1}, 1e9), 0);
}

}  // namespace
}  // namespace brigade::machine
