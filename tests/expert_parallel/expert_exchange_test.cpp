#include "brigade/expert_parallel/expert_exchange.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <vector>

#include "tests/support/leaf.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

// How many rows a rank has for an expert: some have none, and a rank may have
// none at all.
int64_t rows_for(int rank, int64_t expert) {
  return rank == 2 ? 0 : (rank + 2 * expert) % 3;
}

// A row that says where it comes from: [rank, expert, place].
Tensor rows_of(int rank, int64_t experts) {
  std::vector<float> values;
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (int64_t i = 0; i < rows_for(rank, expert); ++i) {
      values.push_back(static_cast<float>(rank));
      values.push_back(static_cast<float>(expert));
      values.push_back(static_cast<float>(i));
    }
  }
  return torch::tensor(values).view({-1, 3});
}

std::vector<int64_t> counts_of(int rank, int64_t experts) {
  std::vector<int64_t> counts;
  for (int64_t expert = 0; expert < experts; ++expert)
    counts.push_back(rows_for(rank, expert));
  return counts;
}

class Exchange : public ::testing::TestWithParam<int> {};

TEST_P(Exchange, BringsEachRowToItsExpertAndBackWithItsGradient) {
  const int size = GetParam();
  const int64_t local = 2;
  const int64_t experts = local * size;
  testing::run_ranks(size, [&](const CommunicatorPtr& world) {
    const int rank = world->rank();
    const ExpertExchange exchange(world, counts_of(rank, experts), torch::kCPU);
    const Tensor rows = testing::leaf(rows_of(rank, experts));
    const Tensor arrived = exchange.to_experts(rows);

    // By expert, then by rank.
    std::vector<Tensor> expected;
    for (int64_t mine = 0; mine < local; ++mine) {
      const int64_t expert = rank * local + mine;
      int64_t count = 0;
      for (int from = 0; from < size; ++from) {
        const Tensor theirs = rows_of(from, experts);
        const Tensor of_expert = theirs.index(
            {(theirs.select(1, 1) == static_cast<double>(expert))});
        expected.push_back(of_expert);
        count += of_expert.size(0);
      }
      EXPECT_EQ(exchange.counts().at(static_cast<size_t>(mine)), count);
    }
    EXPECT_TRUE(torch::equal(arrived, torch::cat(expected)));

    const Tensor back = exchange.from_experts(arrived * 2);
    EXPECT_TRUE(torch::equal(back, rows * 2));
    (back * rows.detach()).sum().backward();
    EXPECT_TRUE(torch::equal(rows.grad(), rows.detach() * 2));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Exchange, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace brigade
