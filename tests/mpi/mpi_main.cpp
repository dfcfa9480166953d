// Runs the tests of communicators and of data parallel over MPI: this binary's
// processes, started by mpirun, are the ranks, and each runs every test. A test
// for fewer ranks takes the first ones.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <stdexcept>

#include "brigade/comm/backend.h"
#include "brigade/comm/self_communicator.h"
#include "brigade/comm/world.h"
#include "tests/mpi/mpi_ranks.h"
#include "tests/support/ranks_as_threads.h"

namespace brigade::testing {
namespace {

struct Ranks {
  LaunchEnvironment environment = read_environment(process_environment());
  StorePtr store = open_store(environment, std::chrono::seconds(60));
  int groups = 0;
};

Ranks& ranks() {
  static Ranks ranks;
  return ranks;
}

}  // namespace

int mpi_rank() {
  return ranks().environment.rank;
}

int mpi_size() {
  return ranks().environment.world_size;
}

StorePtr next_store() {
  return ranks().store->with_prefix(fmt::format("group {}", ranks().groups++));
}

CommunicatorPtr make_mpi_group(CommunicatorOptions options, int size) {
  const StorePtr store = next_store();
  return make_communicator(
      store,
      mpi_rank(),
      size == 0 ? mpi_size() : size,
      std::move(options),
      {.backend = Backend::kMpi});
}

void wait_for_all_ranks() {
  const StorePtr store = ranks().store->with_prefix("ended");
  store->set(std::to_string(mpi_rank()), "yes");
  for (int rank = 0; rank < mpi_size(); ++rank)
    store->get(std::to_string(rank));
}

namespace {

void run_over_mpi(
    int size,
    const std::function<void(CommunicatorPtr world)>& body,
    const RanksOptions& options) {
  if (size > mpi_size())
    throw std::runtime_error(fmt::format(
        "{} ranks are needed, mpirun started {}", size, mpi_size()));
  const CommunicatorOptions communicator{
      .name = "world",
      .timeout = options.timeout,
      .check_collectives = options.check_collectives,
      .max_records = options.max_records};
  if (mpi_rank() >= size) {
    ranks().groups++;
    return;
  }
  if (size == 1) {
    ranks().groups++;
    return body(make_self_communicator(communicator));
  }
  // Threads start together; a test's timeout is not for processes to come.
  const StorePtr store =
      ranks().store->with_prefix(fmt::format("start {}", ranks().groups));
  store->set(std::to_string(mpi_rank()), "here");
  for (int rank = 0; rank < size; ++rank)
    store->get(std::to_string(rank));
  body(make_mpi_group(communicator, size));
}

}  // namespace
}  // namespace brigade::testing

int main(int argc, char** argv) {
  using namespace brigade::testing;
  ::testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  set_rank_runner(run_over_mpi);
  if (mpi_rank() != 0) {
    // One report is enough; failures of the others are printed below.
    GTEST_FLAG_SET(output, "");
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  // Every rank has to start MPI; the first test may be of some of them.
  make_mpi_group();
  const int result = RUN_ALL_TESTS();
  const auto& all = *::testing::UnitTest::GetInstance();
  for (int i = 0; mpi_rank() != 0 && i < all.total_test_suite_count(); ++i) {
    const auto& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& outcome = *suite.GetTestInfo(j)->result();
      for (int k = 0; k < outcome.total_part_count(); ++k) {
        if (outcome.GetTestPartResult(k).failed())
          fmt::print(
              stderr,
              "rank {}: {}.{}: {}\n",
              mpi_rank(),
              suite.name(),
              suite.GetTestInfo(j)->name(),
              outcome.GetTestPartResult(k).summary());
      }
    }
  }
  // MPI ends when all ranks do; after a failed group, it does not wait long.
  brigade::testing::wait_for_all_ranks();
  return result;
}
