#include "brigade/comm/sums/hierarchical_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "brigade/base/error.h"
#include "brigade/comm/process_mesh.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::run_ranks_with_store;
using ::testing::ThrowsMessage;
using torch::Tensor;

using Hosts = std::vector<std::string>;

BackendOptions on_hosts(
    const Hosts& hosts,
    HierarchyChoice choice = HierarchyChoice::kAuto) {
  BackendOptions options;
  options.hosts = hosts;
  options.hierarchy = choice;
  return options;
}

CommunicatorOptions recorded() {
  return {.check_collectives = true, .max_records = 1000};
}

TEST(HostGrid, IsOfHostsWithAsManyRanksEach) {
  const auto grid = find_host_grid({"b", "a", "b", "a"});
  ASSERT_TRUE(grid.has_value());
  EXPECT_THAT(grid->ranks, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(HostGrid, IsNoneWhereThereIsNothingToGain) {
  EXPECT_FALSE(find_host_grid({"a", "a"}).has_value());
  EXPECT_FALSE(find_host_grid({"a", "b"}).has_value());
  EXPECT_FALSE(find_host_grid({"a", "a", "b"}).has_value());
}

// The hosts by rank: one block of ranks per host, or ranks dealt out in turn.
class SumsByHost : public ::testing::TestWithParam<Hosts> {};

TEST_P(SumsByHost, AreThoseOfTheWholeGroup) {
  const int ranks = static_cast<int>(GetParam().size());
  run_ranks_with_store(ranks, [&](int rank, const StorePtr& store) {
    const ProcessMesh mesh(
        {.dp = ranks}, rank, store, recorded(), on_hosts(GetParam()));
    Communicator& group = *mesh.dp_cp();
    ASSERT_NE(mesh.dp_cp(), mesh.world());
    const auto values_of = [](int of_rank, int64_t numel) {
      return torch::arange(numel, torch::kFloat).mul(of_rank + 1);
    };
    const auto sum_of = [&](int64_t numel) {
      return values_of(0, numel) * (ranks * (ranks + 1) / 2);
    };
    // Numbers of elements that the ranks of a host divide evenly or not.
    for (const int64_t numel : {1, 12, 37}) {
      Tensor sum = values_of(rank, numel);
      group.all_reduce(sum)->wait();
      EXPECT_TRUE(torch::equal(sum, sum_of(numel))) << numel;
      Tensor rounded = values_of(rank, numel);
      group.all_reduce_as_bf16(rounded)->wait();
      EXPECT_TRUE(torch::allclose(rounded, sum_of(numel), 0.01)) << numel;
      Tensor largest = values_of(rank, numel);
      group.all_reduce(largest, ReduceOp::kMax)->wait();
      EXPECT_TRUE(torch::equal(largest, values_of(ranks - 1, numel)));
    }
    const Tensor parts = values_of(rank, 3 * ranks);
    Tensor part = torch::empty({3});
    group.reduce_scatter(part, parts)->wait();
    EXPECT_TRUE(torch::equal(part, sum_of(3 * ranks).narrow(0, 3 * rank, 3)));

    Tensor gathered = torch::empty({5 * ranks});
    group.all_gather(gathered, values_of(rank, 5))->wait();
    for (int other = 0; other < ranks; ++other)
      EXPECT_TRUE(
          torch::equal(gathered.narrow(0, 5 * other, 5), values_of(other, 5)));

    for (const int64_t rows : {12, 13}) {
      Tensor matrix = torch::zeros({rows, 3});
      matrix[rank] = rank + 1;
      matrix[rows - 1] = 1;
      group.all_reduce_rows(matrix)->wait();
      Tensor expected = torch::zeros({rows, 3});
      for (int other = 0; other < ranks; ++other)
        expected[other] = other + 1;
      expected[rows - 1] = ranks;
      EXPECT_TRUE(torch::equal(matrix, expected)) << rows;
    }
    Tensor text = torch::full({4}, rank, torch::kLong);
    group.broadcast(text, ranks - 1)->wait();
    EXPECT_EQ(text[3].item<int64_t>(), ranks - 1);
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Hosts,
    SumsByHost,
    ::testing::Values(
        Hosts{"a", "a", "b", "b"},
        Hosts{"a", "b", "a", "b"},
        Hosts{"a", "a", "b", "b", "c", "c"},
        Hosts{"b", "a", "a", "b", "a", "b"}));

// The bytes that this rank sends to other hosts, by the costs of a ring.
double slow_bytes(const ProcessMesh& mesh, const Hosts& hosts) {
  double bytes = 0;
  for (const CommunicatorPtr& group : mesh.all()) {
    // In a ring each rank sends to the next one.
    const auto& members = group->options().members;
    const auto next = static_cast<size_t>((group->rank() + 1) % group->size());
    const auto here = static_cast<size_t>(mesh.rank());
    if (hosts[here] == hosts[static_cast<size_t>(members[next])])
      continue;
    for (const CollectiveRecord& record : group->records()) {
      const double share =
          static_cast<double>(group->size() - 1) / group->size();
      if (record.op == Collective::kAllReduce)
        bytes += 2 * share * static_cast<double>(record.bytes);
    }
  }
  return bytes;
}

TEST(SumsByHost, SendAtMostTheBytesOfARingDividedByTheRanksOfAHost) {
  // Ranks are dealt out in turn, so every neighbour is on the other host.
  const Hosts hosts{"a", "b", "a", "b"};
  run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
    const auto sent = [&](const std::string& name, HierarchyChoice choice) {
      const ProcessMesh mesh(
          {.dp = 4},
          rank,
          store->with_prefix(name),
          recorded(),
          on_hosts(hosts, choice));
      Tensor gradient = torch::ones({6000});
      mesh.dp_cp()->all_reduce(gradient)->wait();
      mesh.world()->barrier();
      return slow_bytes(mesh, hosts);
    };
    const double ring = sent("ring", HierarchyChoice::kOff);
    const double by_host = sent("by host", HierarchyChoice::kAuto);
    EXPECT_EQ(ring, 2 * 0.75 * 24000);
    // Half of the gradient, around a ring of two hosts.
    EXPECT_EQ(by_host, 2 * 0.5 * 12000);
    constexpr int kRanksOfHost = 2;
    EXPECT_LE(by_host, ring / kRanksOfHost);
  });
}

TEST(SumsByHost, SeveralAreUnderWayAtOnce) {
  run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
    const ProcessMesh mesh(
        {.dp = 4}, rank, store, recorded(), on_hosts({"a", "a", "b", "b"}));
    std::vector<Tensor> sums;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 8; ++i) {
      sums.push_back(torch::full({1000 + i}, i));
      works.push_back(mesh.dp_cp()->all_reduce(sums.back()));
    }
    for (size_t i = 0; i < works.size(); ++i) {
      works[i]->wait();
      EXPECT_TRUE(works[i]->is_completed());
      EXPECT_EQ(sums[i][0].item<float>(), 4.0F * static_cast<float>(i));
    }
  });
}

// ZeRO uses them to detect an optimizer that stepped weights before their
// gather.
TEST(SumsByHost, LeaveVersionCountersAlone) {
  run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
    const ProcessMesh mesh(
        {.dp = 4}, rank, store, recorded(), on_hosts({"a", "a", "b", "b"}));
    const auto sum = torch::ones({7});
    const auto gathered = torch::zeros({4, 3});
    const auto sum_version = sum._version();
    const auto gathered_version = gathered._version();
    mesh.dp_cp()->all_reduce(sum)->wait();
    mesh.dp_cp()
        ->all_gather(gathered, torch::full({3}, rank, torch::kFloat))
        ->wait();
    EXPECT_EQ(sum[6].item<float>(), 4);
    EXPECT_EQ(gathered[3][0].item<float>(), 3);
    EXPECT_EQ(sum._version(), sum_version);
    EXPECT_EQ(gathered._version(), gathered_version);
  });
}

// The group over which a step sums its gradients.
TEST(SumsByHost, AreThoseOfReplicasThatAreOneGroup) {
  run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
    ProcessMesh mesh(
        {.dp = 4}, rank, store, recorded(), on_hosts({"a", "a", "b", "b"}));
    ASSERT_NE(mesh.dp_cp(), mesh.world());
    mesh.divide_replicas(1);
    EXPECT_EQ(mesh.replicas(), mesh.dp_cp());
  });
}

TEST(SumsByHost, AreThoseOfGroupsOnSeveralHosts) {
  const Hosts hosts = {"a", "a", "b", "b", "c", "c", "d", "d"};
  run_ranks_with_store(8, [&](int rank, const StorePtr& store) {
    ProcessMesh mesh({.dp = 8}, rank, store, recorded(), on_hosts(hosts));
    mesh.divide_replicas(2);
    Tensor sum = torch::full({1000}, rank);
    mesh.replicas()->all_reduce(sum)->wait();
    EXPECT_EQ(sum[999].item<float>(), rank < 4 ? 6 : 22);
    size_t between_hosts = 0;
    for (const CommunicatorPtr& group : mesh.all()) {
      if (group->name() == "replicas across hosts")
        between_hosts = group->records().size();
    }
    EXPECT_EQ(between_hosts, 1U);
  });
}

TEST(SumsByHost, AreNotAskedOfGroupsInsideOneHost) {
  run_ranks_with_store(4, [&](int rank, const StorePtr& store) {
    ProcessMesh mesh(
        {.dp = 4},
        rank,
        store,
        recorded(),
        on_hosts({"a", "a", "b", "b"}, HierarchyChoice::kOn));
    mesh.divide_replicas(2);
    EXPECT_EQ(mesh.replicas()->size(), 2);
  });
}

TEST(SumsByHost, AreRefusedWhereRequiredButImpossible) {
  run_ranks_with_store(2, [&](int rank, const StorePtr& store) {
    EXPECT_THAT(
        [&] {
          const ProcessMesh mesh(
              {.dp = 2},
              rank,
              store,
              recorded(),
              on_hosts({"a", "b"}, HierarchyChoice::kOn));
        },
        ThrowsMessage<ConfigError>(AllOf(
            HasSubstr("/distributed/hierarchical_reduction"),
            HasSubstr("are on a, b"))));
  });
}

}  // namespace
}  // namespace brigade
