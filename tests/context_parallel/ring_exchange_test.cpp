#include "brigade/context_parallel/ring_exchange.h"

#include <gtest/gtest.h>

#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using torch::Tensor;

TEST(RingExchange, BringsEveryRanksBlockInTurn) {
  for (int size : {2, 3, 4}) {
    testing::run_ranks(size, [&](const CommunicatorPtr& ring) {
      RingExchange exchange(ring, 1);
      Tensor block = torch::full({3}, static_cast<float>(ring->rank()));
      for (int step = 1; step < size; ++step) {
        exchange.expect({3}, torch::kFloat);
        exchange.start(block);
        block = exchange.finish();
        const int source = (ring->rank() - step + size) % size;
        EXPECT_TRUE(
            torch::equal(block, torch::full({3}, static_cast<float>(source))));
      }
    });
  }
}

TEST(RingExchange, NeedsTwoBuffersForAnyNumberOfSteps) {
  testing::run_ranks(4, [](const CommunicatorPtr& ring) {
    RingExchange exchange(ring, 1);
    Tensor block = torch::zeros({3});
    std::vector<void*> buffers{block.data_ptr()};
    for (int step = 1; step < 8; ++step) {
      exchange.expect({3}, torch::kFloat);
      exchange.start(block);
      block = exchange.finish();
      buffers.push_back(block.data_ptr());
    }
    for (size_t i = 2; i < buffers.size(); ++i)
      EXPECT_EQ(buffers[i], buffers[i - 2]);
  });
}

TEST(RingExchange, RunsTwoRingsAtOnceByTag) {
  testing::run_ranks(3, [](const CommunicatorPtr& ring) {
    const float rank = static_cast<float>(ring->rank());
    const float previous = static_cast<float>((ring->rank() + 2) % 3);
    RingExchange first(ring, 1);
    RingExchange second(ring, 2);
    second.expect({2}, torch::kFloat);
    second.start(torch::full({2}, rank + 10));
    first.expect({5}, torch::kFloat);
    first.start(torch::full({5}, rank));
    EXPECT_TRUE(torch::equal(first.finish(), torch::full({5}, previous)));
    EXPECT_TRUE(torch::equal(second.finish(), torch::full({2}, previous + 10)));
  });
}

TEST(RingExchange, MovesBlocksTheOtherWayRound) {
  testing::run_ranks(3, [](const CommunicatorPtr& ring) {
    RingExchange exchange(ring, 1, RingDirection::kDown);
    const float next = static_cast<float>((ring->rank() + 1) % 3);
    exchange.expect({2}, torch::kFloat);
    exchange.start(torch::full({2}, static_cast<float>(ring->rank())));
    EXPECT_TRUE(torch::equal(exchange.finish(), torch::full({2}, next)));
  });
}

// Rank r's block has r elements, so rank 0 sends none.
TEST(RingExchange, PassesBlocksOfDifferentSizes) {
  testing::run_ranks(3, [](const CommunicatorPtr& ring) {
    RingExchange exchange(ring, 1);
    Tensor block =
        torch::full({ring->rank()}, static_cast<float>(ring->rank()));
    for (int step = 1; step < 3; ++step) {
      const int source = (ring->rank() + 3 - step) % 3;
      exchange.expect({source}, torch::kFloat);
      exchange.start(block);
      block = exchange.finish();
      EXPECT_TRUE(torch::equal(
          block, torch::full({source}, static_cast<float>(source))));
    }
    for (const CollectiveRecord& record : ring->records())
      EXPECT_GT(record.numel, 0);
  });
}

}  // namespace
}  // namespace brigade
