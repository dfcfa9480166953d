#include "brigade/expert_parallel/expert_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/leaf.h"
#include "tests/support/ranks_as_threads.h"
#include "tests/support/recording_communicator.h"

namespace brigade {
namespace {

using ::testing::ElementsAre;
using torch::Tensor;

// The number of rows that a rank has for an expert: some get none, and a rank
// may have none.
int64_t rows_for(int rank, int64_t expert) {
  return rank == 2 ? 0 : (rank + 2 * expert) % 3;
}

// Rows that name their origin: [rank, expert, place].
Tensor rows_of(int rank, const std::vector<int64_t>& experts) {
  std::vector<float> values;
  for (const int64_t expert : experts) {
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

TEST(SendingOrder, IsByPartThenByRank) {
  EXPECT_THAT(sending_order(6, 2, 1), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(sending_order(6, 2, 2), ElementsAre(0, 3, 1, 2, 4, 5));
  EXPECT_THAT(sending_order(4, 1, 2), ElementsAre(0, 1, 2, 3));
}

// Ranks and parts.
class Exchange : public ::testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(Exchange, BringsEachRowToItsExpertAndBackWithItsGradient) {
  const int size = std::get<0>(GetParam());
  const int parts = std::get<1>(GetParam());
  const int64_t local = 3;
  const int64_t experts = local * size;
  testing::run_ranks(size, [&](const CommunicatorPtr& world) {
    const int rank = world->rank();
    const ExpertExchange exchange(
        world, counts_of(rank, experts), parts, torch::kCPU);
    const Tensor rows = testing::leaf(
        rows_of(rank, sending_order(experts, world->size(), parts)));
    const auto sent = exchange.send(rows);
    ExpertExchange::UnderWay back;
    int64_t mine = 0;
    for (size_t i = 0; i < exchange.parts().size(); ++i) {
      const Tensor arrived = exchange.arrive(sent, i);
      EXPECT_EQ(exchange.parts()[i].first_expert, mine);
      std::vector<Tensor> expected;  // by expert, then by rank
      for (const int64_t count : exchange.parts()[i].counts) {
        const int64_t expert = rank * local + mine++;
        int64_t there = 0;
        for (int from = 0; from < world->size(); ++from) {
          expected.push_back(rows_of(from, {expert}));
          there += expected.back().size(0);
        }
        EXPECT_EQ(count, there);
      }
      EXPECT_TRUE(torch::equal(arrived, torch::cat(expected)));
      exchange.send_back(back, arrived * 2);
    }
    EXPECT_EQ(mine, local);

    const Tensor returned = exchange.arrive_back(back);
    EXPECT_TRUE(torch::equal(returned, rows * 2));
    // Twice, with retain_graph.
    const Tensor loss = (returned * rows.detach()).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(torch::equal(rows.grad(), rows.detach() * 2));
    loss.backward();
    EXPECT_TRUE(torch::equal(rows.grad(), rows.detach() * 4));
  });
}

INSTANTIATE_TEST_SUITE_P(
    RanksAndParts,
    Exchange,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 4),
        ::testing::Values(1, 2, 3)));

// The thread computes while rows travel, in forward and backward: each of two
// parts travels while the other one computes, and the code between send() and
// arrive() runs while both do. The part that is needed first goes first.
TEST(Exchange, RowsTravelWhileTheThreadComputes) {
  const auto ledger = std::make_shared<testing::LaunchLedger>();
  const CommunicatorPtr group = testing::recording_backend(ledger).make(
      nullptr, 0, 2, {.max_records = 16});
  const ExpertExchange exchange(group, {1, 2, 3, 4}, 2, torch::kCPU);
  // The sizes are on the host.
  EXPECT_EQ(ledger->waited_on_host.exchange(0), 1);
  ledger->launches = ledger->waited = 0;
  group->clear_records();
  std::vector<std::string> seen;
  const auto note = [&](const std::string& what) {
    seen.push_back(
        what + ": " + std::to_string(ledger->waited) + " of " +
        std::to_string(ledger->launches));
  };
  // Records when it computes, in forward and backward.
  const auto compute = [&](const Tensor& x, const std::string& what) {
    note(what);
    Tensor y = x * 2;
    y.register_hook(
        [&note, what](const Tensor&) { note(what + "'s gradient"); });
    return y;
  };

  const Tensor x = testing::leaf(torch::zeros({10, 3}));
  const auto sent = exchange.send(x);
  const Tensor between = compute(x, "between");
  ExpertExchange::UnderWay back;
  exchange.send_back(back, compute(exchange.arrive(sent, 0), "first"));
  exchange.send_back(back, compute(exchange.arrive(sent, 1), "second"));
  (exchange.arrive_back(back) + between).sum().backward();
  EXPECT_THAT(
      seen,
      ElementsAre(
          "between: 0 of 2",
          "first: 1 of 2",
          "second: 2 of 3",
          "second's gradient: 5 of 6",
          "first's gradient: 6 of 7",
          "between's gradient: 6 of 8"));
  EXPECT_EQ(ledger->waited, 8);
  // 4 and 6 rows of 3 numbers.
  std::vector<int64_t> bytes;
  for (const CollectiveRecord& record : group->records())
    bytes.push_back(record.bytes);
  EXPECT_THAT(bytes, ElementsAre(48, 72, 48, 72, 72, 48, 72, 48));
  EXPECT_EQ(ledger->waited_on_host, 0);
}

}  // namespace
}  // namespace brigade
