// Several works waited for as one.
#include "brigade/comm/work.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace brigade {
namespace {

// Ends when the test says so.
struct HeldWork : Work {
  void wait() override { ++waits; }
  bool is_completed() override { return ended_ns != 0; }
  int64_t finished_ns() override { return ended_ns; }
  std::optional<int64_t> reduced_bytes() override { return 7; }

  int64_t ended_ns = 0;
  int waits = 0;
};

TEST(JoinedWork, EndsWithTheLastOfItsWorks) {
  const auto first = std::make_shared<HeldWork>();
  const auto second = std::make_shared<HeldWork>();
  const auto both = join_works({.works = {first, second}});
  first->ended_ns = 30;
  EXPECT_FALSE(both->is_completed());
  EXPECT_EQ(both->finished_ns(), 0);
  second->ended_ns = 20;
  EXPECT_TRUE(both->is_completed());
  EXPECT_EQ(both->finished_ns(), 30);
}

TEST(JoinedWork, CallsBackOnceAfterAllWorks) {
  const auto work = std::make_shared<HeldWork>();
  int calls = 0;
  const auto joined = join_works({.works = {work}, .then = [&] {
                                    EXPECT_EQ(work->waits, 1);
                                    ++calls;
                                  }});
  joined->wait();
  joined->wait_on_host();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(work->waits, 2);
}

TEST(JoinedWork, WithoutWorksEndsWithItsCallback) {
  const auto work = join_works({.then = [] {}});
  EXPECT_FALSE(work->is_completed());
  EXPECT_EQ(work->finished_ns(), 0);
  work->wait();
  EXPECT_TRUE(work->is_completed());
  EXPECT_GT(work->finished_ns(), 0);
}

TEST(JoinedWork, EveryWaitThrowsWhatTheCallbackThrew) {
  int calls = 0;
  const auto work = join_works({.then = [&] {
    ++calls;
    throw std::runtime_error("broken");
  }});
  EXPECT_THROW(work->wait(), std::runtime_error);
  EXPECT_THROW(work->wait(), std::runtime_error);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(work->is_completed());
}

TEST(JoinedWork, ReducedBytesAreThoseOfTheOnlyWorkUnlessGiven) {
  const auto work = std::make_shared<HeldWork>();
  EXPECT_EQ(join_works({.works = {work}})->reduced_bytes(), 7);
  EXPECT_EQ(
      join_works({.works = {work}, .reduced_bytes = 3})->reduced_bytes(), 3);
  EXPECT_EQ(join_works({.works = {work, work}})->reduced_bytes(), std::nullopt);
}

}  // namespace
}  // namespace brigade
