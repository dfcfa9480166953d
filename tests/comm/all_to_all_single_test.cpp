// Different numbers of rows to and from each rank, against a naive loop.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <tuple>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/communicator.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;
using torch::Tensor;

constexpr int64_t kRowNumel = 3;

// The number of rows that rank `from` sends to rank `to`: some pairs exchange
// none, and the last of three or more ranks sends nothing.
int64_t rows_between(int from, int to, int size) {
  if (size > 2 && from == size - 1)
    return 0;
  return (from * 5 + to * 3) % 4;
}

// The row-th row that `from` sends to `to`.
Tensor row_of(int from, int to, int64_t row, torch::ScalarType dtype) {
  return (torch::arange(kRowNumel) + 3 * row + 20 * to + 60 * from).to(dtype);
}

// The rows that one rank sends to all, or receives from all, in rank order.
Tensor rows_of(int rank, int size, bool are_sent, torch::ScalarType dtype) {
  std::vector<Tensor> rows{torch::empty({0, kRowNumel}, dtype)};
  for (int peer = 0; peer < size; ++peer) {
    const int from = are_sent ? rank : peer;
    const int to = are_sent ? peer : rank;
    for (int64_t row = 0; row < rows_between(from, to, size); ++row)
      rows.push_back(row_of(from, to, row, dtype).view({1, kRowNumel}));
  }
  return torch::cat(rows);
}

RowSplits splits_of(int rank, int size) {
  RowSplits splits;
  for (int peer = 0; peer < size; ++peer) {
    splits.input.push_back(rows_between(rank, peer, size));
    splits.output.push_back(rows_between(peer, rank, size));
  }
  return splits;
}

class AllToAllSingle
    : public ::testing::TestWithParam<std::tuple<int, torch::ScalarType>> {};

TEST_P(AllToAllSingle, EveryRowArrivesOnceAtItsRank) {
  const auto [size, dtype] = GetParam();
  run_ranks(size, [size = size, dtype = dtype](const CommunicatorPtr& world) {
    const int rank = world->rank();
    const Tensor expected = rows_of(rank, size, false, dtype);
    // Two under way at once.
    const Tensor sent = rows_of(rank, size, true, dtype);
    Tensor received = torch::full_like(expected, 99);
    Tensor again = torch::full_like(expected, 99);
    const auto splits = splits_of(rank, size);
    const auto first = world->all_to_all_single(received, sent, splits);
    const auto second = world->all_to_all_single(again, sent, splits);
    first->wait();
    second->wait();
    EXPECT_TRUE(torch::equal(received, expected));
    EXPECT_TRUE(torch::equal(again, expected));
    // No row is lost or added.
    Tensor rows = torch::tensor({sent.size(0), received.size(0)});
    world->all_reduce(rows)->wait();
    EXPECT_EQ(rows[0].item<int64_t>(), rows[1].item<int64_t>());
  });
}

TEST_P(AllToAllSingle, SwappedSplitsBringEveryRowBack) {
  const auto [size, dtype] = GetParam();
  run_ranks(size, [size = size, dtype = dtype](const CommunicatorPtr& world) {
    const auto there = splits_of(world->rank(), size);
    const RowSplits back{.output = there.input, .input = there.output};
    const Tensor sent = rows_of(world->rank(), size, true, dtype);
    Tensor between =
        torch::empty_like(rows_of(world->rank(), size, false, dtype));
    world->all_to_all_single(between, sent, there)->wait();
    Tensor returned = torch::empty_like(sent);
    world->all_to_all_single(returned, between, back)->wait();
    EXPECT_TRUE(torch::equal(returned, sent));
  });
}

INSTANTIATE_TEST_SUITE_P(
    RanksAndDtypes,
    AllToAllSingle,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 4),
        ::testing::Values(torch::kFloat, torch::kBFloat16, torch::kLong)));

TEST(AllToAllSingle, WithoutSplitsIsAnAllToAll) {
  run_ranks(3, [](const CommunicatorPtr& world) {
    const Tensor sent = torch::arange(6) + 10 * world->rank();
    Tensor received = torch::empty_like(sent);
    world->all_to_all_single(received, sent, {})->wait();
    for (int64_t from = 0; from < 3; ++from)
      EXPECT_EQ(
          received[2 * from].item<int64_t>(), 2 * world->rank() + 10 * from);
  });
}

TEST(AllToAllSingle, NobodySendsAnything) {
  run_ranks(3, [](const CommunicatorPtr& world) {
    const std::vector<int64_t> none(3, 0);
    Tensor nothing = torch::empty({0, kRowNumel});
    world->all_to_all_single(nothing, nothing.clone(), {none, none})->wait();
    EXPECT_EQ(nothing.numel(), 0);
  });
}

TEST(AllToAllSingle, IsRecordedWithTheBytesOfItsLargerSide) {
  run_ranks(2, [](const CommunicatorPtr& world) {
    world->clear_records();
    const bool sends = world->rank() == 0;
    // Rank 0 sends five rows; rank 1 sends itself one.
    const RowSplits splits =
        sends ? RowSplits{{0, 0}, {0, 5}} : RowSplits{{5, 1}, {0, 1}};
    Tensor received = torch::empty({sends ? 0 : 6, 2});
    world->all_to_all_single(received, torch::ones({sends ? 5 : 1, 2}), splits)
        ->wait();
    const auto records = world->records();
    ASSERT_EQ(records.size(), 1U);
    EXPECT_EQ(records[0].op, Collective::kAllToAllSingle);
    EXPECT_EQ(records[0].numel, 2);
    EXPECT_EQ(records[0].bytes, (sends ? 5 : 6) * 2 * 4);
  });
}

TEST(AllToAllSingle, SplitsThatDoNotAddUpAreNamed) {
  const auto world = testing::make_world_of_one();
  EXPECT_THAT(
      [&] {
        world->all_to_all_single(
            torch::ones({2}), torch::ones({2}), {{2}, {3}});
      },
      ThrowsMessage<Error>(
          AllOf(HasSubstr("input splits [3]"), HasSubstr("which has 2"))));
}

TEST(AllToAllSingle, SplitsThatDoNotFitEachOtherFailOnAllRanksByName) {
  run_ranks(3, [](const CommunicatorPtr& world) {
    // Rank 2 expects a row of rank 0 that nobody sends.
    const std::vector<int64_t> none(3, 0);
    const bool expects = world->rank() == 2;
    const RowSplits splits{.output = {expects ? 1 : 0, 0, 0}, .input = none};
    EXPECT_THAT(
        [&] {
          world->all_to_all_single(
              torch::empty({expects ? 1 : 0, 4}), torch::empty({0, 4}), splits);
        },
        ThrowsMessage<CommError>(AllOf(
            HasSubstr("all_to_all_single #0 of 4 x Float"),
            HasSubstr("rank 0 sends 0 rows to rank 2, which expects 1"))));
  });
}

TEST(AllToAllSingle, RefusesMessagesOfOtherSizesWithoutTheCheck) {
  run_ranks(
      2,
      [](const CommunicatorPtr& world) {
        // Rank 0 sends three rows where rank 1 expects two.
        const bool sends = world->rank() == 0;
        const RowSplits splits =
            sends ? RowSplits{{0, 0}, {0, 3}} : RowSplits{{2, 0}, {0, 0}};
        Tensor received = torch::zeros({sends ? 0 : 2, 4});
        const auto work = world->all_to_all_single(
            received, torch::ones({sends ? 3 : 0, 4}), splits);
        if (sends)
          return;  // its message may be on its way
        EXPECT_THROW(work->wait(), CommError);
        EXPECT_EQ(received.sum().item<float>(), 0);
      },
      {.check_collectives = false, .timeout = std::chrono::seconds(2)});
}

}  // namespace
}  // namespace brigade
