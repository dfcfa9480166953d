// What is MPI's own: sizes at which it goes another way, groups of some of the
// ranks, progress without a waiting thread, and how groups end.
#include "brigade/comm/mpi/mpi_communicator.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "brigade/base/error.h"
#include "brigade/comm/process_mesh.h"
#include "tests/support/ranks_over_mpi.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::make_mpi_group;
using testing::mpi_rank;
using testing::mpi_size;
using testing::next_store;
using ::testing::ThrowsMessage;
using torch::Tensor;

// Small whole numbers: sums are exact in every type, if they stay below 128.
Tensor whole_numbers(int rank, int64_t numel, torch::ScalarType dtype) {
  return torch::arange(numel, torch::kLong)
      .mul_(rank + 3)
      .remainder(11)
      .to(dtype);
}

Tensor sum_of_all(int64_t numel, torch::ScalarType dtype) {
  Tensor sum = whole_numbers(0, numel, torch::kLong);
  for (int rank = 1; rank < mpi_size(); ++rank)
    sum += whole_numbers(rank, numel, torch::kLong);
  return sum.to(dtype);
}

class MpiSums : public ::testing::TestWithParam<torch::ScalarType> {};

TEST_P(MpiSums, AreExactAtEverySize) {
  const auto group = make_mpi_group();
  // Within MPI's own collective, a pair's exchange, one segment, and several
  // of which the last is short; with chunks that differ by an element.
  for (const int64_t numel : {1, 3, 4097, 30001, 300007, 5000003}) {
    Tensor tensor = whole_numbers(mpi_rank(), numel, GetParam());
    group->all_reduce(tensor)->wait();
    EXPECT_TRUE(torch::equal(tensor, sum_of_all(numel, GetParam()))) << numel;
  }
}

TEST_P(MpiSums, LargestAndSmallestAreFound) {
  const auto group = make_mpi_group();
  Tensor largest = torch::full({37}, mpi_rank(), GetParam());
  Tensor smallest = largest.clone();
  group->all_reduce(largest, ReduceOp::kMax)->wait();
  group->all_reduce(smallest, ReduceOp::kMin)->wait();
  EXPECT_TRUE(
      torch::equal(largest, torch::full({37}, mpi_size() - 1, GetParam())));
  EXPECT_TRUE(torch::equal(smallest, torch::zeros({37}, GetParam())));
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    MpiSums,
    ::testing::Values(
        torch::kFloat,
        torch::kDouble,
        torch::kHalf,
        torch::kBFloat16,
        torch::kInt,
        torch::kLong,
        torch::kShort,
        torch::kByte),
    [](const auto& dtype) { return c10::toString(dtype.param); });

TEST(Mpi, SumsHaveTheSameBitsOnAllRanks) {
  const auto group = make_mpi_group();
  for (const int64_t numel : {100, 20000, 700001}) {
    Tensor sum =
        torch::sin(torch::arange(numel, torch::kFloat) * (mpi_rank() + 1));
    group->all_reduce(sum)->wait();
    Tensor first = sum.clone();
    group->broadcast(first, 0)->wait();
    EXPECT_TRUE(torch::equal(sum, first)) << numel;
  }
}

// Rank r owns the elements from numel r / R on, and adds the others' in rank
// order to its own.
TEST(Mpi, LongSumsHaveTheBitsOfTheirOwnersAdditions) {
  const auto group = make_mpi_group();
  const auto wave = [](int rank, int64_t numel) {
    return torch::sin(torch::arange(numel, torch::kFloat) * (rank + 1));
  };
  for (const int64_t numel : {20002, 5000003}) {
    Tensor expected = torch::empty({numel});
    for (int owner = 0; owner < mpi_size(); ++owner) {
      const int64_t begin = numel * owner / mpi_size();
      const int64_t count = numel * (owner + 1) / mpi_size() - begin;
      Tensor sum = expected.narrow(0, begin, count);
      sum.copy_(wave(owner, numel).narrow(0, begin, count));
      for (int rank = 0; rank < mpi_size(); ++rank) {
        if (rank != owner)
          sum += wave(rank, numel).narrow(0, begin, count);
      }
    }
    Tensor sum = wave(mpi_rank(), numel);
    group->all_reduce(sum)->wait();
    EXPECT_TRUE(torch::equal(sum, expected)) << numel;
  }
}

TEST(Mpi, CollectivesOfSeveralGroupsAreUnderWayAtOnce) {
  const auto one = make_mpi_group({.name = "one"});
  const auto other = make_mpi_group({.name = "other"});
  std::vector<Tensor> tensors;
  std::vector<WorkPtr> works;
  // Waited for in opposite orders on neighbouring ranks.
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(torch::full({50000}, i, torch::kFloat));
    works.push_back((i % 2 == 0 ? one : other)->all_reduce(tensors.back()));
  }
  for (size_t i = 0; i < works.size(); ++i)
    works[mpi_rank() % 2 == 0 ? i : works.size() - 1 - i]->wait();
  for (size_t i = 0; i < works.size(); ++i)
    EXPECT_EQ(
        tensors[i].sum().item<double>(),
        50000.0 * mpi_size() * static_cast<double>(i));
}

TEST(Mpi, GroupsAreMadeOfSomeRanks) {
  std::vector<int> members;
  for (int rank = mpi_rank() % 2; rank < mpi_size(); rank += 2)
    members.push_back(rank);
  const auto store = next_store()->with_prefix(std::to_string(mpi_rank() % 2));
  const auto group = make_communicator(
      store,
      mpi_rank() / 2,
      static_cast<int>(members.size()),
      {.name = "half", .members = members},
      {.backend = Backend::kMpi});
  Tensor sum = torch::full({5}, mpi_rank(), torch::kLong);
  group->all_reduce(sum)->wait();
  int64_t expected = 0;
  for (const int member : members)
    expected += member;
  EXPECT_EQ(sum[4].item<int64_t>(), expected);
}

TEST(Mpi, AMeshHasAGroupForEveryAxis) {
  const ParallelDims dims{.dp = mpi_size() / 2, .tp = 2};
  const ProcessMesh mesh(
      dims, mpi_rank(), next_store(), {}, {.backend = Backend::kMpi});
  Tensor tp = torch::full({3}, mpi_rank(), torch::kLong);
  mesh.axis(Axis::kTp)->all_reduce(tp)->wait();
  EXPECT_EQ(tp[0].item<int64_t>(), 4 * (mpi_rank() / 2) + 1);
}

TEST(Mpi, ALongMessageArrivesWhileItsSenderDoesSomethingElse) {
  const auto group = make_mpi_group();
  const auto store = next_store();
  constexpr int64_t kNumel = 4 << 20;
  if (mpi_rank() == 0) {
    const Tensor sent = torch::arange(kNumel, torch::kFloat);
    const WorkPtr work = group->send(sent, 1, /*tag=*/5);
    store->get("arrived");  // no call of MPI by this thread
    work->wait();
  } else if (mpi_rank() == 1) {
    Tensor received = torch::empty({kNumel});
    group->recv(received, 0, /*tag=*/5)->wait();
    EXPECT_TRUE(torch::equal(received, torch::arange(kNumel, torch::kFloat)));
    store->set("arrived", "yes");
  }
  group->barrier();
}

TEST(Mpi, MessagesAreMatchedByTheirTags) {
  const auto group = make_mpi_group();
  if (mpi_rank() == 0) {
    const Tensor first = torch::full({1}, 1.0F);
    const Tensor second = torch::full({1}, 2.0F);
    const WorkPtr one = group->send(first, 1, 10);
    const WorkPtr two = group->send(second, 1, 20);
    one->wait();
    two->wait();
  } else if (mpi_rank() == 1) {
    Tensor first = torch::zeros({1});
    Tensor second = torch::zeros({1});
    group->recv(second, 0, 20)->wait();
    group->recv(first, 0, 10)->wait();
    EXPECT_EQ(first.item<float>(), 1);
    EXPECT_EQ(second.item<float>(), 2);
  }
}

TEST(Mpi, ARankThatEndsByAnExceptionEndsItsPeersSoon) {
  try {
    // Longer than a test may take: nobody waits for it.
    const auto group = make_mpi_group({.timeout = std::chrono::hours(24)});
    if (mpi_rank() == 0)
      throw NumericError("the loss is not finite");
    Tensor tensor = torch::ones({8});
    group->all_reduce(tensor)->wait();
    FAIL() << "no peer, no result";
  } catch (const NumericError&) {
    EXPECT_EQ(mpi_rank(), 0);
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("all_reduce #0 of 8 x Float"));
  }
}

TEST(Mpi, ARankThatDoesNotJoinIsNamed) {
  if (mpi_rank() == 0) {
    next_store();
    return;
  }
  // It waits for rank 0, or for a rank that does.
  EXPECT_THAT(
      [&] {
        make_mpi_group(
            {.name = "without the first",
             .timeout = std::chrono::milliseconds(300)});
      },
      ThrowsMessage<CommError>(AllOf(
          HasSubstr("could not join group"), HasSubstr("waiting for rank"))));
}

TEST(Mpi, RanksThatMpiKnowsByOtherNumbersAreRefused) {
  EXPECT_THAT(
      [&] {
        make_communicator(
            next_store(),
            (mpi_rank() + 1) % mpi_size(),
            mpi_size(),
            {},
            {.backend = Backend::kMpi});
      },
      ThrowsMessage<ConfigError>(
          HasSubstr(fmt::format("MPI calls it rank {}", mpi_rank()))))
      << "rank " << mpi_rank();
}

}  // namespace
}  // namespace brigade
