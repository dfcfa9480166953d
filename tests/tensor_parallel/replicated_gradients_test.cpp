#include "brigade/tensor_parallel/replicated_gradients.h"

#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

// A value that fp32 sums round differently in every order.
Tensor part_of(int rank, int64_t numel) {
  return torch::arange(numel, torch::kFloat) * 0.1F +
         1.0F / static_cast<float>(3 + rank);
}

TEST(SumOverReplicas, AddsRunsOfRanksInOnePackedMessage) {
  testing::run_ranks(4, [](const CommunicatorPtr& group) {
    Tensor a = part_of(group->rank(), 6).view({2, 3});
    Tensor b = part_of(group->rank(), 1);
    group->clear_records();
    sum_over_replicas(*group, 2, {a, b});
    const int first = group->rank() / 2 * 2;
    const Tensor expected = part_of(first, 6) + part_of(first + 1, 6);
    EXPECT_TRUE(torch::equal(a.view({-1}), expected));
    EXPECT_TRUE(torch::equal(b, part_of(first, 1) + part_of(first + 1, 1)));
    const auto records = group->records();
    ASSERT_EQ(records.size(), 2U);
    for (const auto& record : records) {
      EXPECT_EQ(record.peer, group->rank() ^ 1);
      EXPECT_EQ(record.bytes, 7 * 4);
    }
  });
}

TEST(SumOverReplicas, AllReducesARunThatIsTheWholeGroup) {
  testing::run_ranks(3, [](const CommunicatorPtr& group) {
    Tensor a = torch::full({5}, static_cast<float>(1 << group->rank()));
    group->clear_records();
    sum_over_replicas(*group, 3, {a});
    EXPECT_TRUE(torch::equal(a, torch::full({5}, 7.0F)));
    ASSERT_EQ(group->records().size(), 1U);
    EXPECT_EQ(group->records()[0].op, Collective::kAllReduce);
  });
}

TEST(SumOverReplicas, GivesEveryReplicaTheSameBits) {
  for (int ranks : {2, 4}) {
    std::vector<Tensor> results(4);
    testing::run_ranks(4, [&](const CommunicatorPtr& group) {
      Tensor a = part_of(group->rank(), 1000) * 1e-3F;
      sum_over_replicas(*group, ranks, {a});
      results[static_cast<size_t>(group->rank())] = a;
    });
    for (size_t rank = 0; rank < 4; ++rank) {
      const size_t first =
          rank / static_cast<size_t>(ranks) * static_cast<size_t>(ranks);
      EXPECT_TRUE(torch::equal(results[rank], results[first]));
    }
  }
}

TEST(SumOverReplicas, LaunchesNothingForWholeGradients) {
  testing::run_ranks(2, [](const CommunicatorPtr& group) {
    Tensor a = part_of(group->rank(), 3);
    const Tensor before = a.clone();
    const int64_t launches = group->launches();
    sum_over_replicas(*group, 1, {a});
    sum_over_replicas(*group, 2, {});
    EXPECT_EQ(group->launches(), launches);
    EXPECT_TRUE(torch::equal(a, before));
  });
}

}  // namespace
}  // namespace brigade
