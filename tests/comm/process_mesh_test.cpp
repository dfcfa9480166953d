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
              sum(dims.members(axis, rank)));
        }
        EXPECT_EQ(
            sum_of_ranks(mesh.dp_cp(), rank), sum(dims.dp_cp_members(rank)));
        EXPECT_EQ(mesh.model()->size(), dims.pp * dims.tp);
        EXPECT_EQ(
            sum_of_ranks(mesh.embedding(), rank),
            sum(dims.members(Axis::kPp, rank)));
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
