// Collectives that are made of messages from rank to rank.
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <tuple>
#include <vector>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using testing::run_ranks;
using torch::Tensor;

// Resident memory without file mappings and memory shared between MPI peers.
double own_memory_gb() {
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  int64_t shared = 0;
  statm >> total >> resident >> shared;
  return static_cast<double>(resident - shared) *
         static_cast<double>(::sysconf(_SC_PAGESIZE)) / 1e9;
}

// Row r holds the values of rank r.
Tensor all_values(int size, int64_t numel, torch::ScalarType dtype) {
  return torch::arange(size * numel, torch::kDouble)
      .remainder(13)
      .view({size, numel})
      .to(dtype);
}

class ChunksOf : public ::testing::TestWithParam<torch::ScalarType> {};

TEST_P(ChunksOf, AreSummedByTheirOwners) {
  constexpr int kRanks = 3;
  constexpr int64_t kChunk = 5;
  const Tensor all = all_values(kRanks, kRanks * kChunk, GetParam());
  const Tensor sums = all.to(torch::kDouble).sum(0).to(GetParam());
  run_ranks(kRanks, [&](const CommunicatorPtr& world) {
    Tensor sum = torch::empty({kChunk}, all.options());
    world->reduce_scatter(sum, all[world->rank()].clone())->wait();
    EXPECT_TRUE(
        torch::equal(sum, sums.narrow(0, world->rank() * kChunk, kChunk)));
  });
}

TEST_P(ChunksOf, AreGatheredFromWhereTheyBelong) {
  constexpr int kRanks = 3;
  const Tensor all = all_values(kRanks, 5, GetParam());
  run_ranks(kRanks, [&](const CommunicatorPtr& world) {
    Tensor gathered = torch::zeros_like(all);
    const Tensor mine = gathered[world->rank()];
    mine.copy_(all[world->rank()]);
    world->all_gather(gathered, mine)->wait();
    EXPECT_TRUE(torch::equal(gathered, all));
  });
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    ChunksOf,
    ::testing::Values(
        torch::kFloat,
        torch::kDouble,
        torch::kHalf,
        torch::kBFloat16,
        torch::kInt,
        torch::kLong));

// Element by element: rank r owns the r-th of equal chunks (the last may be
// short), and adds the others' in rank order to its own; 16-bit floats in
// float32, rounded once.
Tensor sum_by_owners(
    const std::vector<Tensor>& values,
    torch::ScalarType added_in) {
  const auto size = static_cast<int64_t>(values.size());
  const int64_t numel = values.front().numel();
  const int64_t chunk = (numel + size - 1) / size;
  Tensor result = torch::empty_like(values.front());
  for (int64_t owner = 0; owner * chunk < numel; ++owner) {
    const int64_t begin = owner * chunk;
    const int64_t count = std::min(chunk, numel - begin);
    const auto part = [&](int64_t rank) {
      return values[static_cast<size_t>(rank)]
          .narrow(0, begin, count)
          .to(added_in);
    };
    Tensor sum = part(owner).clone();
    for (int64_t rank = 0; rank < size; ++rank) {
      if (rank != owner)
        sum += part(rank);
    }
    result.narrow(0, begin, count).copy_(sum);
  }
  return result;
}

Tensor waves(int rank, int64_t numel, torch::ScalarType dtype) {
  return torch::arange(numel, torch::kDouble)
      .mul(0.37 + rank)
      .sin()
      .mul(1.0 + rank)
      .to(dtype);
}

class SumsInChunks : public ::testing::TestWithParam<std::tuple<int, int64_t>> {
};

TEST_P(SumsInChunks, HaveTheBitsOfTheirOwnersAdditions) {
  const auto [size, numel] = GetParam();
  std::vector<Tensor> values;
  for (int rank = 0; rank < size; ++rank)
    values.push_back(waves(rank, numel, torch::kBFloat16));
  const Tensor expected = sum_by_owners(values, torch::kFloat);
  run_ranks(size, [&](const CommunicatorPtr& world) {
    Tensor sum = values[static_cast<size_t>(world->rank())].clone();
    world->all_reduce(sum)->wait();
    EXPECT_TRUE(torch::equal(sum, expected));
  });
}

// When all ranks have all rows, they are summed as a whole matrix.
TEST_P(SumsInChunks, HaveTheSameBitsForFullMatrices) {
  const auto [size, numel] = GetParam();
  const int64_t rows = numel / 2;
  std::vector<Tensor> values;
  for (int rank = 0; rank < size; ++rank)
    values.push_back(waves(rank, 2 * rows, torch::kFloat) + 20);
  const Tensor expected = sum_by_owners(values, torch::kFloat);
  run_ranks(size, [&](const CommunicatorPtr& world) {
    Tensor sum =
        values[static_cast<size_t>(world->rank())].clone().view({rows, 2});
    world->all_reduce_rows(sum)->wait();
    EXPECT_TRUE(torch::equal(sum.view({-1}), expected));
  });
}

// Includes fewer elements than ranks, and uneven chunks.
INSTANTIATE_TEST_SUITE_P(
    RanksAndElements,
    SumsInChunks,
    ::testing::Combine(
        ::testing::Values(2, 3, 4),
        ::testing::Values(int64_t{2}, int64_t{37})));
// Chunks of more than one slice, the last one short.
INSTANTIATE_TEST_SUITE_P(
    Slices,
    SumsInChunks,
    ::testing::Values(std::tuple(3, int64_t{6'400'003})));

// 256 + 1 + 1 + 1: bf16 additions one by one would stay at 256. The blocks of
// the sum have 4,096 elements.
TEST(Chunks, Bfloat16IsSummedInFloat32AndRoundedOnce) {
  constexpr int64_t kChunk = 5000;
  run_ranks(4, [](const CommunicatorPtr& world) {
    const Tensor mine = torch::full(
        {4 * kChunk}, world->rank() == 0 ? 256 : 1, torch::kBFloat16);
    Tensor sum = torch::empty({kChunk}, torch::kBFloat16);
    world->reduce_scatter(sum, mine)->wait();
    EXPECT_TRUE(torch::equal(sum, torch::full_like(sum, 260)));
  });
}

// Gradient buckets are launched one after another and waited for together, so a
// waiting bucket must not keep what it received.
TEST(Chunks, AreFreedBeforeAnybodyWaits) {
  constexpr int64_t kNumel = 4 << 20;
  constexpr int kBuckets = 96;
  run_ranks(2, [](const CommunicatorPtr& world) {
    const auto expect_small = [&](const std::function<WorkPtr()>& launch) {
      launch()->wait();
      world->barrier();
      const double before = own_memory_gb();
      std::vector<WorkPtr> works;
      for (int i = 0; i < kBuckets; ++i)
        works.push_back(launch());
      works.back()->wait();  // the others have ended
      // They received 0.8 GB per rank.
      EXPECT_LT(own_memory_gb(), before + 0.3);
      for (const WorkPtr& work : works)
        work->wait();
      world->barrier();
    };
    const Tensor bucket = torch::ones({kNumel});
    Tensor sum = torch::empty({kNumel / 2});
    expect_small([&] { return world->reduce_scatter(sum, bucket); });
    EXPECT_TRUE(torch::equal(sum, torch::full_like(sum, 2)));
    Tensor zeros = torch::zeros({kNumel}, torch::kBFloat16);
    expect_small([&] { return world->all_reduce(zeros); });
  });
}

TEST(Messages, UsersMessagesDoNotMixWithThoseOfCollectives) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    const int other = 1 - world->rank();
    const auto of = [](int rank, float value) {
      return torch::full({3}, value + 10.0F * rank, torch::kBFloat16);
    };
    // Launched before the collectives, whose messages come first.
    Tensor received = torch::zeros({3}, torch::kBFloat16);
    const WorkPtr arrival = world->recv(received, other);
    Tensor sum = of(world->rank(), 1);
    world->all_reduce(sum)->wait();
    Tensor gathered = torch::zeros({2, 3}, torch::kBFloat16);
    world->all_gather(gathered, of(world->rank(), 2))->wait();
    Tensor wide = torch::full({4}, 1.0F + world->rank());
    world->all_reduce_as_bf16(wide)->wait();
    const Tensor mine = of(world->rank(), 3);
    const WorkPtr departure = world->send(mine, other);
    arrival->wait();
    departure->wait();
    EXPECT_TRUE(torch::equal(received, of(other, 3)));
    EXPECT_TRUE(torch::equal(sum, of(0, 12)));
    EXPECT_TRUE(torch::equal(gathered, torch::stack({of(0, 2), of(1, 2)})));
    EXPECT_TRUE(torch::equal(wide, torch::full({4}, 3.0F)));
  });
}

// Each direction has its own connection, which keeps messages in order.
TEST(Messages, ArriveInOrderBothWaysUnderOneTag) {
  run_ranks(3, [](const CommunicatorPtr& world) {
    constexpr int kCount = 8;
    constexpr int64_t kNumel = 100'000;
    const int next = (world->rank() + 1) % 3;
    const int previous = (world->rank() + 2) % 3;
    std::vector<Tensor> tensors;
    std::vector<WorkPtr> works;
    const auto value = [](int rank, int i) { return 100.0F * rank + i; };
    for (int i = 0; i < kCount; ++i) {
      for (const int peer : {next, previous}) {
        tensors.push_back(torch::empty({kNumel}));
        works.push_back(world->recv(tensors.back(), peer, /*tag=*/3));
      }
    }
    for (int i = 0; i < kCount; ++i) {
      for (const int peer : {next, previous}) {
        tensors.push_back(torch::full({kNumel}, value(world->rank(), i)));
        works.push_back(world->send(tensors.back(), peer, /*tag=*/3));
      }
    }
    for (const WorkPtr& work : works)
      work->wait();
    for (int i = 0; i < kCount; ++i) {
      const size_t at = 2 * static_cast<size_t>(i);
      const auto holds = [&](const Tensor& x, int rank) {
        return torch::equal(x, torch::full_like(x, value(rank, i)));
      };
      EXPECT_TRUE(holds(tensors[at], next));
      EXPECT_TRUE(holds(tensors[at + 1], previous));
    }
  });
}

}  // namespace
}  // namespace brigade
