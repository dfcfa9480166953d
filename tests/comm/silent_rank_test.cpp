// An error never blames a rank that is there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <functional>
#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "brigade/base/error.h"
#include "brigade/comm/gloo/gloo_communicator.h"
#include "brigade/comm/start/post_mortem.h"
#include "brigade/comm/store.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::HasSubstr;
using testing::kNever;

torch::Tensor ones_of(int64_t numel) {
  return torch::ones({numel});
}

// The errors of ranks with different timeouts, each running `body`.
std::vector<std::string> errors_of(
    const std::vector<std::chrono::milliseconds>& timeouts,
    const std::function<void(CommunicatorPtr world)>& body) {
  const int ranks = static_cast<int>(timeouts.size());
  std::vector<std::string> errors(timeouts.size());
  testing::run_ranks_with_store(ranks, [&](int rank, const StorePtr& store) {
    const auto index = static_cast<size_t>(rank);
    auto world =
        testing::join_patiently(store, rank, ranks, [&](const StorePtr& place) {
          return make_gloo_communicator(
              place, rank, ranks, {.timeout = timeouts[index]});
        });
    errors[index] = message_of<CommError>([&] { body(std::move(world)); });
  });
  return errors;
}

constexpr const char* kRank2Alone = "; rank 2 of this group did not report";

// Rank 0 waits for rank 2 on one connection, rank 1 for rank 0 on another, far
// longer: the news has to reach it and be passed on. (Ranks that wait for one
// that has given up to connect give up in their turn, and all do it again.)
TEST(SilentRank, IsNotTheOneThatWaitsOnAnotherConnection) {
  constexpr std::chrono::minutes kLonger{2};
  std::latch is_waiting(1);
  std::latch done(2);
  const auto errors = errors_of(
      {std::chrono::seconds(1), kLonger, kLonger},
      [&](const CommunicatorPtr& world) {
        if (world->rank() == 2) {
          done.wait();
          return;
        }
        if (world->rank() == 0)
          is_waiting.wait();
        const WorkPtr work = world->rank() == 0 ? world->recv(ones_of(4), 2)
                                                : world->recv(ones_of(4), 0);
        if (world->rank() == 1)
          is_waiting.count_down();
        try {
          work->wait();
        } catch (...) {
          done.count_down();
          throw;
        }
      });
  EXPECT_THAT(errors[0], HasSubstr(kRank2Alone));
  EXPECT_THAT(errors[1], HasSubstr(kRank2Alone));
}

// Rank 1 computes while rank 0 loses rank 2.
TEST(SilentRank, IsNotTheOneThatIsBusy) {
  const auto gather = [](Communicator& world) {
    return world.all_gather(ones_of(12), ones_of(4));
  };
  const auto sum = [](Communicator& world) {
    return world.all_reduce(ones_of(12));
  };
  for (const auto& launch :
       {std::function<WorkPtr(Communicator&)>(gather),
        std::function<WorkPtr(Communicator&)>(sum)}) {
    std::latch has_left(1);
    std::latch has_failed(1);
    const auto errors = errors_of(
        std::vector<std::chrono::milliseconds>(3, kNever),
        [&](CommunicatorPtr world) {
          if (world->rank() == 2) {
            world.reset();
            has_left.count_down();
            return;
          }
          (world->rank() == 0 ? has_left : has_failed).wait();
          try {
            launch(*world)->wait();
          } catch (...) {
            if (world->rank() == 0)
              has_failed.count_down();
            throw;
          }
        });
    EXPECT_THAT(errors[0], HasSubstr(kRank2Alone));
    EXPECT_THAT(errors[1], HasSubstr(kRank2Alone));
  }
}

// Rank 0 waits for rank 1, which waits for rank 2; rank 3 is busy.
TEST(SilentRank, IsFoundThroughThoseThatMissedIt) {
  const StorePtr store = make_in_process_store(std::chrono::seconds(5));
  PostMortem first(store, 0, 4);
  PostMortem second(store, 1, 4);
  first.report({1});
  second.report({});
  second.report({2});
  EXPECT_EQ(
      first.describe(),
      "; rank 2 of this group did not report: lost or stalled");
}

TEST(SilentRank, IsNotTheOneOfAnOperationThatTheFailureEnded) {
  const StorePtr store = make_in_process_store(std::chrono::seconds(5));
  PostMortem rank(store, 0, 4);
  rank.report({1, 2});
  rank.report({3});
  EXPECT_EQ(
      rank.describe(),
      "; ranks 1, 2 of this group did not report: lost or stalled");
}

}  // namespace
}  // namespace brigade
