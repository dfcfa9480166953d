#include "brigade/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <functional>
#include <latch>
#include <vector>

#include "brigade/base/error.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_ranks;
using ::testing::ThrowsMessage;

// All ranks send to the next at once, which no order of blocking send and recv
// could do.
TEST(Communicator, AllMembersOfARingExchangeAtOnce) {
  run_ranks(3, [](CommunicatorPtr world) {
    const int next = (world->rank() + 1) % 3;
    const int previous = (world->rank() + 2) % 3;
    const auto sent = torch::full({4}, world->rank());
    auto received = torch::zeros({4}, sent.options());
    world->exchange({sent, next, received, previous, 7})->wait();
    EXPECT_TRUE(torch::equal(received, torch::full({4}, previous)));
  });
}

TEST(Communicator, AnExchangeWithoutElementsOneWayIsTheOtherWayAlone) {
  run_ranks(2, [](CommunicatorPtr world) {
    const bool sends = world->rank() == 0;
    const auto sent = torch::full({sends ? 3 : 0}, 5.0);
    auto received = torch::zeros({sends ? 0 : 3});
    const int other = 1 - world->rank();
    world->exchange({sent, other, received, other, 0})->wait();
    EXPECT_EQ(received.sum().item<float>(), sends ? 0 : 15);
    EXPECT_EQ(world->launches(), 1);
  });
}

TEST(Communicator, ATensorOfAnotherDeviceThanTheGroupsIsNamed) {
  const auto world = testing::make_world_of_one();
  EXPECT_THAT(
      [&] { world->all_reduce(torch::empty({2}, torch::kMeta)); },
      ThrowsMessage<Error>(HasSubstr(
          "all_reduce of a tensor on meta in group 'world', which was "
          "made for tensors on cpu")));
}

TEST(Communicator, AMessageToItselfOrToNobodyIsNamed) {
  run_ranks(2, [](CommunicatorPtr world) {
    const auto tensor = torch::ones({2});
    const int self = world->rank();
    const auto is_refused = ThrowsMessage<UsageError>(AllOf(
        HasSubstr("in group 'world' of 2 ranks"),
        HasSubstr("is a message of this rank to itself")));
    EXPECT_THAT([&] { world->send(tensor, self); }, is_refused);
    EXPECT_THAT([&] { world->recv(tensor, self); }, is_refused);
    EXPECT_THAT(
        [&] {
          world->exchange({tensor, 1 - self, tensor, self, 0});
        },
        is_refused);
    EXPECT_THAT(
        [&] {
          world->exchange({tensor, self, tensor, 1 - self, 0});
        },
        is_refused);
    EXPECT_THAT(
        [&] { world->broadcast(tensor, -1); },
        ThrowsMessage<UsageError>(
            HasSubstr("broadcast with rank -1 in group 'world' of 2 ranks")));
    EXPECT_THAT(
        [&] { world->send(tensor, -1); },
        ThrowsMessage<UsageError>(HasSubstr("send with rank -1")));
    EXPECT_EQ(world->launches(), 0);
    world->barrier();
  });
}

TEST(Communicator, AGroupOfOneReceivesAMessageOfTheSameSizeAlone) {
  const auto world = testing::make_world_of_one();
  world->send(torch::ones({1}), 0);
  auto received = torch::zeros({4});
  EXPECT_THAT(
      [&] { world->recv(received, 0); },
      ThrowsMessage<UsageError>(AllOf(
          HasSubstr("recv #1 of 4 x Float"),
          HasSubstr("has sent itself 1 x Float with tag 0"))));
  auto number = torch::zeros({1}, torch::kInt);
  EXPECT_THROW(world->recv(number, 0), UsageError);
  world->recv(received[0], 0)->wait();
  EXPECT_EQ(received.sum().item<float>(), 1);
}

TEST(Communicator, AnUndefinedAndASparseTensorAreNamed) {
  const auto world = testing::make_world_of_one();
  const auto dense = torch::zeros({2, 2});
  using Call = std::function<void(const torch::Tensor&)>;
  const std::vector<Call> calls = {
      [&](const auto& each) { world->all_reduce(each); },
      [&](const auto& each) { world->all_reduce_as_bf16(each); },
      [&](const auto& each) { world->all_reduce_rows(each); },
      [&](const auto& each) { world->reduce_scatter(each, each); },
      [&](const auto& each) { world->reduce_scatter(each, dense); },
      [&](const auto& each) { world->reduce_scatter(dense, each); },
      [&](const auto& each) { world->all_gather(each, each); },
      [&](const auto& each) { world->all_gather(dense, each); },
      [&](const auto& each) { world->all_gather(each, dense); },
      [&](const auto& each) { world->broadcast(each, 0); },
      [&](const auto& each) { world->all_to_all(each, dense); },
      [&](const auto& each) { world->all_to_all(dense, each); },
      [&](const auto& each) {
        world->all_to_all_single(each, dense, {{2}, {2}});
      },
      [&](const auto& each) { world->send(each, 0); },
      [&](const auto& each) { world->recv(each, 0); }};
  for (const Call& call : calls) {
    EXPECT_THAT(
        [&] { call(torch::Tensor()); },
        ThrowsMessage<UsageError>(HasSubstr("of an undefined tensor")));
    EXPECT_THAT(
        [&] { call(dense.to_sparse()); },
        ThrowsMessage<UsageError>(
            HasSubstr("it takes dense ones; call to_dense()")));
  }
}

// Every collective against its definition, for odd sizes, empty tensors and
// both a type that Gloo reduces and one that is composed.
class CollectivesTest : public ::testing::TestWithParam<
                            std::tuple<int, int64_t, torch::ScalarType>> {};

torch::Tensor values(int rank, int64_t numel, torch::ScalarType dtype) {
  return (torch::arange(numel, torch::kFloat) + 10.0 * (rank + 1)).to(dtype);
}

TEST_P(CollectivesTest, MatchTheirDefinitions) {
  const auto [size, numel, dtype] = GetParam();
  run_ranks(size, [&, numel = numel, dtype = dtype](CommunicatorPtr world) {
    const int ranks = world->size();
    auto sum = torch::zeros({numel}, torch::kFloat);
    std::vector<torch::Tensor> all;
    for (int rank = 0; rank < ranks; ++rank) {
      all.push_back(values(rank, numel, dtype));
      sum += all.back().to(torch::kFloat);
    }
    const auto mine = values(world->rank(), numel, dtype);

    auto reduced = mine.clone();
    world->all_reduce(reduced)->wait();
    EXPECT_TRUE(torch::equal(reduced, sum.to(dtype)));

    auto gathered = torch::empty({ranks * numel}, mine.options());
    world->all_gather(gathered, mine)->wait();
    EXPECT_TRUE(torch::equal(gathered, torch::cat(all)));

    auto scattered = torch::empty({numel}, mine.options());
    world->reduce_scatter(scattered, gathered.clone())->wait();
    const auto expected = (mine.to(torch::kFloat) * ranks).to(dtype);
    EXPECT_TRUE(torch::equal(scattered, expected));

    auto sent = torch::cat(
        std::vector<torch::Tensor>(static_cast<size_t>(ranks), mine));
    auto exchanged = torch::empty_like(sent);
    world->all_to_all(exchanged, sent)->wait();
    EXPECT_TRUE(torch::equal(exchanged, torch::cat(all)));

    auto from_last = mine.clone();
    world->broadcast(from_last, ranks - 1)->wait();
    EXPECT_TRUE(torch::equal(from_last, all.back()));

    auto from_previous = torch::empty_like(mine);
    const int next = (world->rank() + 1) % ranks;
    const int previous = (world->rank() + ranks - 1) % ranks;
    const auto send = world->send(mine, next, /*tag=*/7);
    world->recv(from_previous, previous, /*tag=*/7)->wait();
    send->wait();
    EXPECT_TRUE(
        torch::equal(from_previous, all[static_cast<size_t>(previous)]));
    world->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Worlds,
    CollectivesTest,
    ::testing::Combine(
        ::testing::Values(1, 2, 3, 4),
        ::testing::Values(int64_t{0}, int64_t{1}, int64_t{37}),
        ::testing::Values(torch::kFloat, torch::kBFloat16)));

TEST(Communicator, SumsBfloat16InFp32AndRoundsOnce) {
  run_ranks(4, [](CommunicatorPtr world) {
    // 256 + 1 + 1 + 1: bf16 additions one by one would stay at 256.
    auto value =
        torch::full({1}, world->rank() == 0 ? 256 : 1, torch::kBFloat16);
    world->all_reduce(value)->wait();
    EXPECT_EQ(
        value.item<float>(), 260.0F);  // 259 rounded to bf16, half to even
  });
}

TEST(Communicator, ComposedAndNativeLaunchesKeepTheirOrder) {
  run_ranks(3, [](CommunicatorPtr world) {
    std::vector<torch::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(torch::full(
          {1 + i}, i, i % 2 == 0 ? torch::kBFloat16 : torch::kFloat));
      works.push_back(world->all_reduce(tensors.back()));
    }
    for (int i = 0; i < 20; ++i) {
      works[static_cast<size_t>(i)]->wait();
      EXPECT_EQ(
          tensors[static_cast<size_t>(i)].sum(torch::kFloat).item<double>(),
          3.0 * i * (1 + i));
    }
  });
}

TEST(Communicator, RecordsWhatWasLaunched) {
  run_ranks(2, [](CommunicatorPtr world) {
    world->clear_records();
    auto tensor = torch::ones({8}, torch::kBFloat16);
    world->all_reduce(tensor)->wait();
    world->broadcast(tensor, 1)->wait();
    const auto records = world->records();
    ASSERT_EQ(records.size(), 2U);
    EXPECT_EQ(records[0].op, Collective::kAllReduce);
    EXPECT_EQ(records[0].bytes, 16);
    EXPECT_EQ(records[1].peer, 1);
    EXPECT_EQ(records[1].sequence_number, records[0].sequence_number + 1);
  });
}

TEST(Communicator, FloatAgainstIntOfTheSameSizeFailsOnAllRanksByName) {
  run_ranks(2, [](CommunicatorPtr world) {
    auto tensor =
        torch::ones({8}, world->rank() == 0 ? torch::kFloat : torch::kInt);
    EXPECT_THAT(
        [&] { world->all_reduce(tensor); },
        ThrowsMessage<CommError>(AllOf(
            HasSubstr("group 'world'"),
            HasSubstr("rank 0: all_reduce #0 of 8 x Float"),
            HasSubstr("rank 1: all_reduce #0 of 8 x Int"))));
  });
}

TEST(Communicator, RanksMayDifferInWhatTheySendBetweenCollectives) {
  run_ranks(3, [](CommunicatorPtr world) {
    auto tensor = torch::ones({4});
    if (world->rank() == 0)
      world->send(tensor, 1)->wait();
    if (world->rank() == 1)
      world->recv(tensor, 0)->wait();
    world->all_reduce(tensor)->wait();
    EXPECT_EQ(tensor[0].item<float>(), 3.0F);
  });
}

// SIGPIPE would end a rank whose peer is gone without any message.
TEST(Communicator, ABrokenSocketIsNoSignal) {
  const auto before = ::signal(SIGPIPE, SIG_DFL);
  run_ranks(2, [](const CommunicatorPtr&) {});
  EXPECT_EQ(::signal(SIGPIPE, before), SIG_IGN);
}

TEST(Communicator, AHandlerOfBrokenPipesStays) {
  const auto handler = [](int) {};
  const auto before = ::signal(SIGPIPE, handler);
  run_ranks(2, [](const CommunicatorPtr&) {});
  EXPECT_EQ(::signal(SIGPIPE, before), static_cast<void (*)(int)>(handler));
}

TEST(Communicator, AnErrorNamesTheOperationTheGroupAndTheSilentRank) {
  std::latch have_launched(2);
  run_ranks(
      3,
      [&](CommunicatorPtr world) {
        auto tensor = torch::ones({8});
        world->all_reduce(tensor)->wait();
        if (world->rank() == 2) {
          // Stops taking part while the others go on.
          if (!testing::ranks_are_processes())
            have_launched.wait();
          return;
        }
        const WorkPtr work = world->all_reduce(tensor);
        have_launched.count_down();
        EXPECT_THAT(
            [&] { work->wait(); },
            ThrowsMessage<CommError>(AllOf(
                HasSubstr("all_reduce #1 of 8 x Float"),
                HasSubstr("group 'world'"),
                HasSubstr("rank 2 of this group"))));
      },
      {.check_collectives = false,
       .timeout = testing::timeout_of_lost_ranks()});
}

}  // namespace
}  // namespace brigade
