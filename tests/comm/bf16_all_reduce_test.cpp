// The sum of float32 values that travel in bf16.
#include "brigade/comm/sums/bf16_all_reduce.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <vector>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;
using torch::Tensor;

Tensor values_of(int rank, int64_t numel) {
  return torch::arange(numel, torch::kFloat)
      .mul_(0.37 + rank)
      .sin_()
      .mul_(1.0 + rank);
}

// What the owner of each chunk adds: its own part as it is, the others' rounded
// to bf16, in rank order; the sum is rounded once more.
Tensor oracle(int size, int64_t numel) {
  const int64_t chunk = numel / size;
  Tensor result = torch::empty({numel});
  for (int owner = 0; owner < size; ++owner) {
    const auto part = [&](int rank) {
      return values_of(rank, numel).narrow(0, owner * chunk, chunk);
    };
    Tensor sum = part(owner).clone();
    for (int peer = 0; peer < size; ++peer) {
      if (peer != owner)
        sum += part(peer).to(torch::kBFloat16).to(torch::kFloat);
    }
    result.narrow(0, owner * chunk, chunk)
        .copy_(sum.to(torch::kBFloat16).to(torch::kFloat));
  }
  return result;
}

class Bf16AllReduceOf
    : public ::testing::TestWithParam<std::pair<int, int64_t>> {};

TEST_P(Bf16AllReduceOf, EveryRankGetsTheOwnersSums) {
  const auto [size, chunk] = GetParam();
  const int64_t numel = size * chunk;
  const Tensor expected = oracle(size, numel);
  run_ranks(size, [&, numel = numel](const CommunicatorPtr& world) {
    Tensor values = values_of(world->rank(), numel);
    world->all_reduce_as_bf16(values)->wait();
    EXPECT_TRUE(torch::equal(values, expected)) << world->rank();
  });
}

// The last two are cut into slices.
INSTANTIATE_TEST_SUITE_P(
    RanksAndChunks,
    Bf16AllReduceOf,
    ::testing::Values(
        std::pair(2, int64_t{1}),
        std::pair(4, int64_t{100}),
        std::pair(2, int64_t{(1 << 21) + 3}),
        std::pair(3, int64_t{(1 << 20) + 1})));

TEST(Bf16AllReduce, SeveralUnderWayAtOnceKeepApart) {
  run_ranks(3, [](const CommunicatorPtr& world) {
    std::vector<Tensor> values;
    std::vector<WorkPtr> works;
    for (const int64_t numel : {3, 300, 3000}) {
      values.push_back(values_of(world->rank(), numel));
      works.push_back(world->all_reduce_as_bf16(values.back()));
    }
    for (size_t i = 0; i < works.size(); ++i) {
      works[i]->wait();
      EXPECT_TRUE(torch::equal(values[i], oracle(3, values[i].numel()))) << i;
    }
  });
}

}  // namespace
}  // namespace brigade
