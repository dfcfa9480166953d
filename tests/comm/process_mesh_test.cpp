#include "brigade/comm/process_mesh.h"

#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

// The sum of the members' ranks, as each group's all-reduce sees it.
int64_t sum_of_ranks(const CommunicatorPtr& group, int rank) {
  auto value = torch::full({1}, rank, torch::kLong);
  group->all_reduce(value)->wait();
  return value.item<int64_t>();
}

int64_t sum(const std::vector<int>& members) {
  int64_t total = 0;
  for (const int member : members)
    total += member;
  return total;
}

TEST(ProcessMesh, EveryGroupHoldsTheRanksOfTheGrid) {
  const ParallelDims dims{.dp = 2, .tp = 2, .pp = 2, .cp = 1};
  testing::run_ranks_with_store(
      dims.world_size(), [&](int rank, const StorePtr& store) {
        const ProcessMesh mesh(dims, rank, store);
        for (const Axis axis : kAxes) {
          EXPECT_EQ(mesh.axis(axis)->size(), dims[axis]);
          EXPECT_EQ(mesh.axis(axis)->rank(), mesh.coordinate()[axis]);
          EXPECT_EQ(
              sum_of_ranks(mesh.axis(axis), rank),
              sum(dims.members(along_axes({axis}), rank)));
        }
        EXPECT_EQ(
            sum_of_ranks(mesh.dp_cp(), rank),
            sum(dims.members(along_axes(kReplicaAxes), rank)));
        EXPECT_EQ(mesh.model()->size(), dims.pp * dims.tp);
        EXPECT_EQ(
            sum_of_ranks(mesh.embedding(), rank),
            sum(dims.members(along_axes({Axis::kPp}), rank)));
      });
}

// A grid with more ranks than are fully connected.
TEST(ProcessMesh, ALargeGridHasNoConnectionsButAlongItsAxes) {
  const ParallelDims dims{.dp = 3, .tp = 3, .pp = 2};
  const int ranks = dims.world_size();
  testing::run_ranks_with_store(ranks, [&](int rank, const StorePtr& store) {
    const ProcessMesh mesh(dims, rank, store, {.check_collectives = true});
    Communicator& world = *mesh.world();
    EXPECT_EQ(world.rank(), rank);
    EXPECT_EQ(world.size(), ranks);
    EXPECT_EQ(sum_of_ranks(mesh.world(), rank), ranks * (ranks - 1) / 2);

    auto all = torch::empty({2 * ranks}, torch::kLong);
    world.all_gather(all, torch::full({2}, rank, torch::kLong))->wait();
    EXPECT_TRUE(torch::equal(all, torch::arange(ranks).repeat_interleave(2)));
    for (const int root : {0, 7, ranks - 1}) {
      auto value = torch::full({1}, rank, torch::kLong);
      world.broadcast(value, root)->wait();
      EXPECT_EQ(value.item<int64_t>(), root);
    }
    auto part = torch::empty({1}, torch::kLong);
    world.reduce_scatter(part, torch::arange(ranks))->wait();
    EXPECT_EQ(part.item<int64_t>(), rank * ranks);
    auto exchanged = torch::empty({ranks}, torch::kLong);
    world.all_to_all(exchanged, torch::arange(ranks) + 100 * rank)->wait();
    EXPECT_TRUE(torch::equal(exchanged, 100 * torch::arange(ranks) + rank));
    world.barrier();
    EXPECT_ANY_THROW(world.send(part, 1));

    int peers = 0;
    for (const CommunicatorPtr& group : mesh.all()) {
      if (group != mesh.world() && group != mesh.model())
        peers += group->size() - 1;
    }
    // Connections of each axis, of the world and of both ends of the embedding.
    EXPECT_LE(peers, 2 * (2 + 2 + 1) + 1);
  });
}

// Two groups of four replicas (dp 2, cp 2), each with its experts in two parts.
TEST(ProcessMesh, GroupsThatTrainApartHaveAllExpertsEach) {
  const ParallelDims dims{.dp = 4, .cp = 2, .ep = 2};
  testing::run_ranks_with_store(8, [&](int rank, const StorePtr& store) {
    ProcessMesh mesh(dims, rank, store);
    EXPECT_EQ(mesh.expert_replicas(), mesh.all_expert_replicas());
    mesh.divide_replicas(2);
    const int first = rank < 4 ? 0 : 4;
    const int part = rank % 2;
    EXPECT_EQ(sum_of_ranks(mesh.replicas(), rank), 4 * first + 6);
    EXPECT_EQ(
        sum_of_ranks(mesh.expert_parallel(), rank), 2 * (rank - part) + 1);
    EXPECT_EQ(
        sum_of_ranks(mesh.expert_replicas(), rank), 2 * (first + part) + 2);
    EXPECT_EQ(sum_of_ranks(mesh.all_expert_replicas(), rank), 4 * part + 12);
    // Ranks 0 and 4, 1 and 5; the others are alone.
    EXPECT_EQ(
        sum_of_ranks(mesh.between_groups(), rank),
        rank % 4 < 2 ? 2 * part + 4 : rank);
    EXPECT_EQ(mesh.between_groups()->rank(), rank % 4 < 2 ? rank / 4 : 0);
  });
}

TEST(ProcessMesh, AGroupOfOneIsACommunicatorToo) {
  const ProcessMesh mesh({}, 0, nullptr);
  for (const Axis axis : kAxes)
    EXPECT_EQ(sum_of_ranks(mesh.axis(axis), 5), 5);
  EXPECT_EQ(mesh.all().size(), 1U);
}

}  // namespace
}  // namespace brigade
