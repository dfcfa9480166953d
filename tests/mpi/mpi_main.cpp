// Runs the tests of communicators and of data parallel over MPI: this binary's
// processes, started by mpirun, are the ranks, and each runs every test. A test
// for fewer ranks takes the first ones.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "tests/support/ranks_over_mpi.h"

int main(int argc, char** argv) {
  using namespace brigade::testing;
  ::testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  if (mpi_rank() != 0) {
    // One report is enough; failures of the others are printed below.
    GTEST_FLAG_SET(output, "");
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  run_ranks_over_mpi();
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
