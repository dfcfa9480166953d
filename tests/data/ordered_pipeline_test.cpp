#include "brigade/data/ordered_pipeline.h"

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <stdexcept>

namespace brigade {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

// 0, 1, ..., count - 1, squared.
OrderedStages<int, int> squares(int count, std::vector<int>& results) {
  return {
      .num_workers = 3,
      .max_cost = 10,
      .produce =
          [count, i = 0](int& input) mutable {
            input = i++;
            return input < count;
          },
      .cost = [](const int&) { return 1; },
      .transform = [](int i) { return i * i; },
      .consume = [&](int result) { results.push_back(result); }};
}

TEST(OrderedPipeline, ConsumesInTheOrderOfProduction) {
  std::vector<int> results;
  auto stages = squares(500, results);
  // The first input is done only after two later ones were.
  std::latch later(2);
  stages.transform = [&](int i) {
    if (i == 0)
      later.wait();
    else if (i <= 2)
      later.count_down();
    return i * i;
  };
  run_ordered(stages);
  ASSERT_EQ(results.size(), 500U);
  for (int i = 0; i < 500; ++i)
    ASSERT_EQ(results[static_cast<size_t>(i)], i * i);
}

TEST(OrderedPipeline, BoundsTheCostOfWhatIsUnderWay) {
  std::vector<int> results;
  auto stages = squares(200, results);
  stages.max_cost = 4;
  std::atomic<int> under_way = 0;
  std::atomic<int> most = 0;
  auto transform = stages.transform;
  stages.transform = [&](int i) {
    const int now = ++under_way;
    int before = most;
    while (now > before && !most.compare_exchange_weak(before, now)) {
    }
    return transform(i);
  };
  stages.consume = [&](int) { --under_way; };
  run_ordered(stages);
  EXPECT_LE(most, 4);
  EXPECT_EQ(under_way, 0);
}

TEST(OrderedPipeline, AnInputDearerThanTheBoundGoesThroughAlone) {
  std::vector<int> results;
  auto stages = squares(5, results);
  stages.cost = [](const int& i) { return i == 2 ? 1000U : 1U; };
  run_ordered(stages);
  EXPECT_THAT(results, ElementsAre(0, 1, 4, 9, 16));
}

TEST(OrderedPipeline, TheFirstFailureInOrderIsThrownAfterWhatCameBefore) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::vector<int> results;
    auto stages = squares(100, results);
    stages.transform = [](int i) {
      if (i == 3 || i == 4)
        throw std::runtime_error("input " + std::to_string(i));
      return i;
    };
    EXPECT_THAT(
        [&] { run_ordered(stages); },
        ThrowsMessage<std::runtime_error>("input 3"));
    EXPECT_THAT(results, ElementsAre(0, 1, 2));
  }
}

TEST(OrderedPipeline, FailuresOfProducerAndConsumerStopEverything) {
  std::vector<int> results;
  auto stages = squares(100, results);
  stages.produce = [i = 0](int& input) mutable {
    if (i == 2)
      throw std::runtime_error("producer");
    input = i++;
    return true;
  };
  EXPECT_THROW(run_ordered(stages), std::runtime_error);
  EXPECT_THAT(results, ElementsAre(0, 1));

  auto other = squares(1000, results);
  other.consume = [](int) { throw std::runtime_error("consumer"); };
  EXPECT_THROW(run_ordered(other), std::runtime_error);
}

TEST(OrderedPipeline, NothingProducedIsNothingConsumed) {
  std::vector<int> results;
  run_ordered(squares(0, results));
  EXPECT_TRUE(results.empty());
}

}  // namespace
}  // namespace brigade
